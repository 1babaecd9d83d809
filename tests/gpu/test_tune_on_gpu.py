"""`tune` and `run` on a real GPU, end to end on an example."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SMALL = "--layers 4 --width 512 --heads 8 --length 512 --vocabulary 8000 --batch 8".split()  # noqa: SIM905


def flatout(*words: str, folder: Path) -> Any:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [sys.executable, "-m", "flatout", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.timeout(400)
def test_a_gpt_with_attention_by_hand_is_tuned_and_run(tmp_path: Path) -> None:
    script = str(ROOT / "examples" / "gpt.py")
    only = [word for lever in ("bf16", "fused-optimizer", "attention") for word in ("--only", lever)]
    found = flatout("tune", "--json", "--budget", "60s", *only, script, *SMALL, folder=tmp_path)
    verdicts = {trial["lever"]: trial["verdict"] for trial in found["trials"]}
    assert verdicts["attention"] == "kept"
    assert verdicts["bf16"] == "kept"
    assert found["guard"]["verdict"] == "same"
    assert found["speedup"] > 1.5
    ran = flatout("run", "--json", script, *SMALL, "--steps", "200", folder=tmp_path)
    assert ran["dropped_levers"] == {}
    assert ran["guard"]["verdict"] == "inside"
    assert ran["guard"]["paired"]
    assert ran["samples_per_s"] > 0.8 * ran["promised_samples_per_s"]
