"""Runs the real command in a real process, away from the user's own cache."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]

# What starts a script: threads that share cores with other tests wait for each other at every operation.
_STARTS_A_JOB = ("batch", "check", "fit", "profile", "run", "tune")


@pytest.fixture
def flatout(tmp_path: Path) -> Run:
    """`flatout("doctor", "--json", COLUMNS="20")`: arguments, and environment variables by keyword."""

    def run(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "OMP_"))}
        threads = {"OMP_NUM_THREADS": "1"} if arguments[:1] and arguments[0] in _STARTS_A_JOB else {}
        return subprocess.run(
            [sys.executable, "-m", "flatout", *arguments],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            cwd=cwd or tmp_path,
            env={**kept, **threads, "FLATOUT_CACHE_DIR": str(tmp_path / "cache"), **environment},
            timeout=280,
        )

    return run
