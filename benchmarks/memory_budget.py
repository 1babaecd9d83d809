"""A training that takes more memory than it may, and what `flatout tune --max-memory` makes of it.

A GPT of 1.3 billion parameters, in bfloat16 by autocast, takes 75 GB; it is to run in 40. The result has the
step time and the memory as written and under the plan, and what each way of making room took.

    python -m benchmarks.memory_budget [--max-memory 40GB] [--batch 25] [--out FOLDER]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import write

ROOT = Path(__file__).parents[1]
JOB = (
    *(str(ROOT / "benchmarks" / "fit_job.py"), "--model", "gpt", "--layers", "24", "--width", "2048"),
    *("--length", "1024", "--precision", "autocast", "--updates", "1000000", "--batch"),
)
KEPT = ("summary", "baseline", "best", "trials", "guard", "notes", "spent_seconds")


def tuned(most: str, batch: str, options: list[str]) -> dict[str, Any]:
    """What the command says."""
    command = [sys.executable, "-m", "flatout", "tune", "--json", "--max-memory", most, *options, *JOB, batch]
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        took_s = time.monotonic() - began
    try:
        found = json.loads(done.stdout)
    except ValueError:
        found = {}
    if "guard" not in found:
        return {"failed": (done.stderr or done.stdout)[-2000:], "took_s": took_s}
    found["guard"].pop("curves", None)
    return {"took_s": took_s, **{name: found[name] for name in KEPT}}


def main() -> None:
    """Tune it once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--max-memory", default="40GB")
    parser.add_argument("--batch", default="25")
    parser.add_argument("--options", default="--only block-checkpointing,activation-offload")
    parser.add_argument("--out", help="a folder for the result file")
    chosen = parser.parse_args()
    result = tuned(chosen.max_memory, chosen.batch, chosen.options.split())
    if "best" in result:
        result["times_as_long"] = result["best"]["step_ms"] / result["baseline"]["step_ms"]
        print(f"{result['times_as_long']:.3f} times as long: {result['summary']}")
    words = {"max_memory": chosen.max_memory, "batch": chosen.batch, "options": chosen.options}
    out = str(Path(chosen.out) / "memory-budget.json") if chosen.out else None
    write("memory-budget", {**words, **result}, out)


if __name__ == "__main__":
    main()
