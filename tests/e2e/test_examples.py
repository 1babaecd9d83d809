"""Every script in examples/ runs by itself, as a user would start it, and prints losses that are numbers."""

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py"))

# Enough steps for two losses, and little else.
TINY = {
    "finetune_hf.py": "--layers 2 --width 32 --heads 2 --length 32 --vocabulary 200 --samples 256"
    " --batch-size 8 --steps 20",
    "gan.py": "--width 8 --noise 16 --samples 256 --batch-size 8 --steps 20",
    "gpt.py": "--layers 2 --width 64 --heads 4 --length 64 --vocabulary 500 --steps 5",
    "gpt_sdpa.py": "--layers 2 --width 64 --heads 4 --length 64 --vocabulary 500 --steps 10",
    "images.py": "--images 128 --pixels 40 --crop 32 --width 8 --blocks 1,1,1,1 --batch-size 8 --steps 20",
    "lightning_module.py": "--width 8 --points 128 --samples 256 --batch-size 8 --steps 20",
    "lstm.py": "--width 32 --length 16 --batch 4 --vocabulary 200 --steps 51",
    "parallel.py": "--layers 4 --width 32 --heads 4 --length 16 --vocabulary 64 --batch 8 --steps 20",
    "resnet.py": "--batch 2 --size 32 --steps 51",
}
# Looked for, not imported: their warnings would be errors in the tests' process.
NEEDS = {
    "finetune_hf.py": ("transformers", "accelerate"),
    "images.py": ("PIL",),
    "lightning_module.py": ("lightning",),
    "resnet.py": ("torchvision",),
}

# `loss 1.5`, and the Trainer's `'loss': '1.5'`; not its `train_loss`, which sums up the others.
LOSS = re.compile(r"\bloss['\"]?[:=]?\s+['\"]?([^\s'\",}]+)")


def test_no_arguments_for_a_script_that_is_gone() -> None:
    assert sorted({*TINY, *NEEDS} - set(SCRIPTS)) == []


# Frameworks take seconds to import, and the zoo has them too.
HEAVY = ("finetune_hf.py", "lightning_module.py")

# Each script in a fork of one process that has loaded torch, and what torch loads at the first update.
FORKS = """
import json, os, runpy, sys
import torch, torch._dynamo
for words in json.load(sys.stdin):
    pid = os.fork()
    if pid == 0:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")
        sys.stdout.flush()
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.wait()[1])
    print(f"== {os.path.basename(words[0])} {code}", flush=True)
"""


def missing_for(name: str) -> list[str]:
    """Packages that the script needs and that are not here."""
    return [package for package in NEEDS.get(name, ()) if importlib.util.find_spec(package) is None]


def words_for(name: str) -> list[str]:
    if name not in TINY:
        pytest.fail(f"examples/{name} has no arguments in TINY: add some that make it tiny")
    return [str(EXAMPLES / name), *TINY[name].split()]


def python(words: list[str], place: Path, given: str = "") -> "subprocess.CompletedProcess[str]":
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FLATOUT_")}
    return subprocess.run(
        [sys.executable, *words],
        input=given,
        capture_output=True,
        text=True,
        cwd=place,
        # Temporary files go where the test looks for leftovers.
        env={**kept, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TMPDIR": str(place)},
        timeout=250,
    )


def insist_on_losses(said: str) -> None:
    losses = [float(loss) for loss in LOSS.findall(said)]
    assert len(losses) >= 2, said
    assert all(math.isfinite(loss) for loss in losses), said


def test_examples_run(tmp_path: Path) -> None:
    names = [name for name in SCRIPTS if name not in HEAVY and not missing_for(name)]
    done = python(["-c", FORKS], tmp_path, json.dumps([words_for(name) for name in names]))
    parts = re.split(r"^== (\S+) (\S+)\n", done.stdout, flags=re.MULTILINE)
    assert parts[1::3] == names, done.stderr
    assert set(parts[2::3]) == {"0"}, done.stdout + done.stderr
    for said in parts[0:-1:3]:
        insist_on_losses(said)
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []


@pytest.mark.full
@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_runs_as_a_user_starts_it(name: str, tmp_path: Path) -> None:
    if missing := missing_for(name):
        pytest.skip(f"{missing[0]} is not installed")
    done = python(words_for(name), tmp_path)
    assert done.returncode == 0, done.stderr
    insist_on_losses(done.stdout)
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []
