"""`flatout run --every`: is a job that becomes slower noticed, how soon, and what do its recordings cost?

A job whose steps last as long as it is told becomes slower at a known update, by a known factor; one stays as
it is. Noted are the alarms: how many updates after the change, with which factor, and those of the job that
had no change. Then the same job is run with and without recordings, by turns, and its own clock tells what a
step takes from the outside, recordings and all.

    python -m benchmarks.long_run
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.machine import write

FACTORS = (1.0, 1.1, 1.3, 1.5, 2.0)
EVERY = 1000
JOB = """
import sys, time
import torch
steps, change_at, factor, step_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
torch.manual_seed(0); torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
began = None
for number in range(steps):
    if number == 100:
        began = time.perf_counter()
    until = time.perf_counter() + step_s * (factor if number >= change_at else 1.0)
    optimizer.zero_grad()
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
    time.sleep(max(0.0, until - time.perf_counter()))
print((time.perf_counter() - began) / (steps - 100))
"""


def run(folder: Path, options: list[str], *words: object) -> tuple[dict[str, Any], float]:
    """The document of one run, and the seconds of a step by the job's own clock."""
    command = [sys.executable, "-m", "flatout", "run", "--json", "--as-written", *options, "job.py"]
    done = subprocess.run(
        [*command, *map(str, words)], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(done.stderr[-2000:])
    # With --json the job's own output goes to standard error, among our words.
    own = [line for line in done.stderr.splitlines() if line.replace(".", "").replace("e-", "").isdigit()]
    return json.loads(done.stdout), float(own[-1])


def noticed(folder: Path, factor: float, steps: int, step_s: float) -> dict[str, Any]:
    """A job that becomes slower half-way."""
    change_at = steps // 2
    document, _ = run(folder, ["--every", str(EVERY)], steps, change_at, factor, step_s)
    slower = [one for one in document["alarms"] if one["what"] == "slower"]
    right = [one for one in slower if one["update"] >= change_at and factor > 1]
    return {
        "factor": factor,
        "change_at": change_at,
        "alarms": document["alarms"],
        "false_alarms": len(slower) - len(right),
        "updates_after_the_change": right[0]["update"] - change_at if right else None,
        "factor_told": right[0]["step_ms"] / right[0]["best_ms"] if right else None,
        "recordings": len(document["recordings"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--out")
    chosen = parser.parse_args()
    step_s = chosen.step_ms / 1000
    rows = []
    ratios: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.py").write_text(JOB)
        for factor in FACTORS:
            rows.append(noticed(folder, factor, chosen.steps, step_s))
            print(json.dumps(rows[-1]), flush=True)
        for _ in range(chosen.turns):
            # The job's own work sets the pace here: sleeping would hide what recordings cost.
            plain = run(folder, [], chosen.steps, chosen.steps, 1.0, 0.0)[1]
            recorded = run(folder, ["--every", str(EVERY)], chosen.steps, chosen.steps, 1.0, 0.0)[1]
            ratios.append(recorded / plain)
            print(f"a step with recordings every {EVERY}: {ratios[-1]:.3f} of one without", flush=True)
    body = {
        "subject": "slowdowns noticed in a long run, and what its recordings cost",
        "steps": chosen.steps,
        "every": EVERY,
        "slowdowns": rows,
        "step_with_recordings_over_without": {"median": statistics.median(ratios), "turns": ratios},
    }
    write("long-run", body, chosen.out)


if __name__ == "__main__":
    main()
