"""A training that takes more memory than it may, and what `flatout tune --max-memory` makes of it.

A GPT of 1.3 billion parameters, in bfloat16 by autocast, takes 75 GB; it is to run in 40. The result has the
step time and the memory as written and under the plan, and what each way of making room took. What would make
it faster than as written is left out, so that what the room costs shows. After `--limit` seconds the command
gets a Ctrl-C, and how far it came is written down.

    python -m benchmarks.memory_budget [--max-memory 40GB] [--batch 25] [--limit 300] [--out FOLDER]
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import write
from benchmarks.tuning import flatout
from flatout.analyze.steps import read_ranks

ROOT = Path(__file__).parents[1]
JOB = (
    *(str(ROOT / "benchmarks" / "fit_job.py"), "--model", "gpt", "--layers", "24", "--width", "2048"),
    *("--length", "1024", "--precision", "autocast", "--on-device", "--updates", "1000000", "--batch"),
)
LEFT_OUT = "compile,fused-optimizer,tf32,sdpa-backend,garbage-collector,activation-offload,optimizer-offload"
KEPT = ("summary", "baseline", "best", "trials", "guard", "notes", "spent_seconds")


def tuned(most: str, batch: str, options: list[str], limit_s: float) -> dict[str, Any]:
    """What the command says, and its runs."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        words = ["tune", "--json", "--max-memory", most, *options, *JOB, batch]
        stdout, stderr = flatout(words, Path(folder), "", limit_s)
        result: dict[str, Any] = {"took_s": time.monotonic() - began, "runs": runs_in(Path(folder))}
    try:
        found = json.loads(stdout)
    except ValueError:
        found = {}
    if "guard" not in found:
        return {"failed": (stderr or stdout)[-2000:], **result}
    found["guard"].pop("curves", None)
    return {**result, **{name: found[name] for name in KEPT}}


def runs_in(folder: Path) -> list[dict[str, Any]]:
    """Each run so far: what it was for, the time of its last steps, and the most that was reserved."""
    found = []
    for path in sorted(
        folder.glob(".flatout/runs/*/trials/*/trial.json"), key=lambda one: one.stat().st_mtime
    ):
        trial = json.loads(path.read_text())
        ranks = read_ranks(path.parent)[:1]
        last_ms = [ms for rank in ranks for ms in rank.wall_ms()[-8:]]
        peaks = [peak for rank in ranks for step in rank.steps if (peak := step.get("reserved_peak_bytes"))]
        found.append(
            {
                **{
                    name: trial[name]
                    for name in ("name", "outcome", "updates", "took_s", "to_first_update_s")
                },
                "step_ms": statistics.median(last_ms) if last_ms else None,
                "reserved_peak_bytes": max(peaks, default=None),
            }
        )
    return found


def main() -> None:
    """Tune it once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--max-memory", default="40GB")
    parser.add_argument("--batch", default="25")
    parser.add_argument("--options", default=f"--budget 100s --skip {LEFT_OUT}")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of tuning, then a Ctrl-C")
    parser.add_argument("--out", help="a folder for the result file")
    chosen = parser.parse_args()
    result = tuned(chosen.max_memory, chosen.batch, chosen.options.split(), chosen.limit)
    for run in result["runs"]:
        print(run)
    if "best" in result:
        result["times_as_long"] = result["best"]["step_ms"] / result["baseline"]["step_ms"]
        print(f"{result['times_as_long']:.3f} times as long: {result['summary']}", result["spent_seconds"])
    else:
        print(result["failed"])
    words = {"max_memory": chosen.max_memory, "batch": chosen.batch, "options": chosen.options}
    out = str(Path(chosen.out) / "memory-budget.json") if chosen.out else None
    write("memory-budget", {**words, **result}, out)


if __name__ == "__main__":
    main()
