"""Every script in examples/ runs by itself, as a user would start it, and prints losses that are numbers."""

import importlib.util
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


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full) if name in HEAVY else name for name in SCRIPTS]
)
def test_example_runs(name: str, tmp_path: Path) -> None:
    if name not in TINY:
        pytest.fail(f"examples/{name} has no arguments in TINY: add some that make it tiny")
    for package in NEEDS.get(name, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FLATOUT_")}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *TINY[name].split()],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        cwd=tmp_path,
        # Temporary files go where the test looks for leftovers.
        env={**kept, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TMPDIR": str(tmp_path)},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in LOSS.findall(done.stdout)]
    assert len(losses) >= 2, done.stdout
    assert all(math.isfinite(loss) for loss in losses), done.stdout
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []
