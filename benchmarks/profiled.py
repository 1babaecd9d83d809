"""`flatout profile --json` in a folder, as benchmarks need it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def profiled(words: list[str], folder: str | Path, python_path: str = "") -> dict[str, Any]:
    """The document; where there is none, the end of what the command said, as `failed`."""
    paths = (str(ROOT / "src"), os.environ.get("PYTHONPATH", ""), python_path)
    done = subprocess.run(
        [sys.executable, "-m", "flatout", "profile", "--json", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": ":".join(filter(None, paths))},
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"failed": done.stderr[-2000:]}
    return found
