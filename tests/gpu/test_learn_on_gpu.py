"""Lessons on a real GPU: what is measured is the GPU, and its figures hang together."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(280)
def test_lessons_measure_the_gpu(tmp_path: Path) -> None:
    lessons = ("memory", "bound", "launch", "precision", "training")
    done = subprocess.run(
        [sys.executable, "-m", "flatout", "learn", *lessons, "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "FLATOUT_CACHE_DIR": str(tmp_path)},
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["device"]["torch_device"] == "cuda:0"
    figures = {one["id"]: {f["name"]: f["value"] for f in one["figures"]} for one in document["lessons"]}
    assert figures["memory"]["the GPU's memory"] > 1e11
    assert figures["memory"]["the host, pinned"] < figures["memory"]["the GPU's memory"]
    assert figures["bound"]["1 rows"] < figures["bound"]["4096 rows"] <= figures["bound"]["peak"]
    assert figures["launch"]["kernel in a recorded graph"] < figures["launch"]["launch"]
    assert figures["training"]["activations, batch 16"] > 10 * figures["training"]["activations, batch 1"]
