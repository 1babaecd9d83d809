"""`flatout profile --json` in a folder, as benchmarks need it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def profiled(
    words: list[str], folder: str | Path, python_path: str = "", limit_s: float = 600.0
) -> dict[str, Any]:
    """The document; where there is none by then, the end of what the command said, as `failed`."""
    paths = (str(ROOT / "src"), os.environ.get("PYTHONPATH", ""), python_path)
    with subprocess.Popen(
        [sys.executable, "-m", "flatout", "profile", "--json", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": ":".join(filter(None, paths))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            stdout, stderr = running.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGINT)  # as a user would: it ends the job, too
            stdout, stderr = running.communicate()
    try:
        found: dict[str, Any] = json.loads(stdout)
    except ValueError:
        return {"failed": stderr[-2000:] or f"nothing was said within {limit_s:.0f} s"}
    return found
