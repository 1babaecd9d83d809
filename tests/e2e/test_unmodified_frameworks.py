"""Scripts of the Trainer of transformers, of Lightning and of Accelerate, which know nothing of Flatout.

Each is killed in the middle of a pass and goes on bit for bit, is imagined on a GPU, and is profiled.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.test_zoo import ZOO

# The script, what it needs, where it is killed, and how many samples its loader gives at a time.
SCRIPTS = {
    "whole_hf_trainer": ("transformers", 14, 4),
    "whole_lightning": ("lightning", 21, 8),
    "whole_accelerate": ("accelerate", 13, 4),
}


def start(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    cwd.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def end_of(job: subprocess.CompletedProcess[str]) -> list[str]:
    """What it says of all that it has learned, and of its last passes."""
    assert job.returncode == 0, job.stderr
    return [line for line in job.stdout.splitlines() if line.startswith(("epoch", "end"))][-2:]


@pytest.mark.full
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_of_a_framework_is_killed_imagined_and_profiled(name: str, tmp_path: Path) -> None:
    needs, dies_at, batch = SCRIPTS[name]
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    script = str(ZOO / f"{name}.py")
    bare = start(script, cwd=tmp_path / "bare")

    protected = ("-m", "flatout", "run", "--protect", "--no-rehearsal", "--save-every", "4", script)
    first = start(*protected, cwd=tmp_path / "killed", DIES_AT=str(dies_at))
    assert first.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), first.stderr
    second = start(*protected, cwd=tmp_path / "killed")
    assert end_of(second) == end_of(bare)
    assert "updates that it had already made since then come out the same" in second.stderr

    imagined = start("-m", "flatout", "fit", "--gpu", "rtx4090", "--json", script, cwd=tmp_path / "fit")
    assert imagined.returncode in (0, 1), imagined.stderr
    assert json.loads(imagined.stdout)["peak_bytes"] > 0

    profiled = start("-m", "flatout", "profile", "--json", script, cwd=tmp_path / "profile")
    assert profiled.returncode == 0, profiled.stderr
    run = json.loads(profiled.stdout)["run"]
    kept = json.loads((tmp_path / "profile/.flatout/runs" / run / "profile.json").read_text())
    sizes = {one["settings"]["batch_size"] for one in kept["loaders"]}
    assert batch in sizes
