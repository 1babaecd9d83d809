"""A plan as the settings of a library."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flatout.integrations.accelerate.switches import accelerator_settings
from flatout.integrations.hugging_face.switches import training_arguments
from flatout.integrations.lightning.switches import loader_arguments, trainer_settings
from flatout.records.errors import FlatoutError
from flatout.records.plan import Choice, Fingerprint, Plan


def plan(**levers: dict[str, object]) -> Plan:
    choices = tuple(Choice(id=name.replace("_", "-"), settings=settings) for name, settings in levers.items())
    return Plan(job=Fingerprint(script="train.py", script_sha256=""), levers=choices)


def test_the_trainer_of_transformers_gets_what_it_has_a_switch_for() -> None:
    found = training_arguments(
        plan(
            bf16={},
            compile={"mode": "reduce-overhead"},
            loader={"num_workers": 4, "pin_memory": True, "prefetch_factor": None},
            fused_optimizer={},
            channels_last={},
            batch_size={"--batch-size": 32},
        )
    )
    assert found == {
        "bf16": True,
        "torch_compile": True,
        "torch_compile_mode": "reduce-overhead",
        "dataloader_num_workers": 4,
        "dataloader_pin_memory": True,
        "optim": "adamw_torch_fused",
    }
    assert found.reasons.keys() == found.keys()
    assert "autocast" in found.reasons["bf16"]
    assert found.left.keys() == {"channels-last", "batch-size"}
    assert "callback applies it" in found.left["channels-last"]
    assert "changes the training" in found.left["batch-size"]


def test_lightning_gets_a_precision_and_your_loader_the_rest() -> None:
    mine = plan(bf16={}, cudnn_autotune={}, loader={"num_workers": 3})
    found = trainer_settings(mine)
    assert found == {"precision": "bf16-mixed", "benchmark": True}
    assert "DataLoader" in found.left["loader"]
    assert loader_arguments(mine) == {"num_workers": 3}
    assert loader_arguments(plan(bf16={})) == {}


def test_accelerate_compiles_where_its_switch_says_as_much() -> None:
    assert accelerator_settings(plan(fp16={}, compile={"mode": "default"})) == {
        "mixed_precision": "fp16",
        "dynamo_backend": "inductor",
    }
    assert accelerator_settings(plan(compile={"mode": "reduce-overhead"})) == {}


def test_a_plan_s_file_will_do_and_a_broken_one_is_named(tmp_path: Path) -> None:
    mine = tmp_path / "flatout.toml"
    plan(bf16={}).write(mine)
    assert training_arguments(mine) == training_arguments(str(mine)) == {"bf16": True}
    mine.write_text("version = 1\n[[lever]]\nidd = 3\n")
    with pytest.raises(FlatoutError, match=r"flatout\.toml"):
        training_arguments(mine)


LOOK = """
import json, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("transformers", "lightning", "pytorch_lightning", "accelerate"):
            raise ImportError(f"there is no {name}")

sys.meta_path.insert(0, Absent())
import flatout.integrations, flatout.integrations.hugging_face, flatout.integrations.lightning
import flatout.integrations.accelerate
from flatout.records.errors import EnvironmentProblem

seen = {"loaded": "torch" in sys.modules, "told": []}
for use in (
    lambda: flatout.integrations.hugging_face.FlatoutCallback,
    lambda: flatout.integrations.lightning.FlatoutCallback,
    lambda: flatout.integrations.accelerate.Flatout(None),
):
    try:
        use()
    except EnvironmentProblem as error:
        seen["told"].append(error.remedy)
print(json.dumps(seen))
"""


def test_libraries_are_loaded_when_used_and_a_missing_one_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "loaded": False,
        "told": ["pip install transformers", "pip install lightning", "pip install accelerate"],
    }
