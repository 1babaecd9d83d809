"""How often the guard is right: corruptions that it rejects, and honest levers that it lets pass.

Small real trainings on the CPU (three jobs, several seeds), each under a session as in a trial; every
corruption is judged with bf16's tolerance, the widest that a lever is allowed.

    python -m benchmarks.guard --seeds 10
"""

import argparse
import functools
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks import guard_jobs
from benchmarks.guard_jobs import CORRUPTIONS, JOBS, MEANINGLESS, train
from benchmarks.machine import write
from flatout.levers.catalogue import BY_ID
from flatout.levers.job import JobFacts
from flatout.tune.guard import judge
from flatout.tune.guard_runs import GuardRun

BF16 = 2.0**-9
HONEST = (("bf16", {}), ("fused-optimizer", {}), ("channels-last", {}), ("compile", {"mode": "default"}))


@functools.cache
def baselines(folder: Path, job: str, seed: int, roundoff: float) -> tuple[GuardRun, list[GuardRun]]:
    """The reference and its three twins."""
    reference = train(folder / f"{job}-{seed}-{roundoff}", JOBS[job], seed=seed)
    twins = [
        train(folder / f"{job}-{seed}-{roundoff}-{n}", JOBS[job], seed=seed, perturb=roundoff, which=n)
        for n in (1, 2, 3)
    ]
    return reference, twins


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=guard_jobs.STEPS)
    parser.add_argument("--out")
    chosen = parser.parse_args()
    guard_jobs.STEPS = chosen.steps
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for job in JOBS:
            for seed in range(chosen.seeds):
                wide = baselines(folder, job, seed, BF16)
                for name, spoil in CORRUPTIONS.items():
                    if (job, name) in MEANINGLESS:
                        continue
                    run = train(folder / f"{job}-{seed}-{name}", JOBS[job], spoil, seed=seed)
                    verdict = judge(*wide, run, roundoff=BF16)
                    rows.append({"job": job, "seed": seed, "what": name, "planted": True, "verdict": verdict})
                for lever, settings in HONEST:
                    if lever == "channels-last" and job != "images":
                        continue
                    if lever == "compile" and seed > 1:  # each takes as long as everything else together
                        continue
                    roundoff = BY_ID[lever].tolerance(JobFacts())
                    known = wide if roundoff == BF16 else baselines(folder, job, seed, roundoff)
                    levers = ({"id": lever, "settings": settings},)
                    run = train(
                        folder / f"{job}-{seed}-{lever}",
                        JOBS[job],
                        seed=seed,
                        levers=levers,
                        same_random=True,
                    )
                    verdict = judge(*known, run, roundoff=roundoff)
                    rows.append(
                        {"job": job, "seed": seed, "what": lever, "planted": False, "verdict": verdict}
                    )
    table: dict[str, dict[str, Any]] = {}
    for row in rows:
        entry = table.setdefault(
            row["what"], {"planted": row["planted"], "runs": 0, "rejected": 0, "missed": []}
        )
        entry["runs"] += 1
        rejected = row["verdict"].verdict == "unsafe"
        entry["rejected"] += rejected
        if rejected != row["planted"]:
            entry["missed"].append([row["job"], row["seed"], row["verdict"].reason])
    planted = [row for row in rows if row["planted"]]
    honest = [row for row in rows if not row["planted"]]
    result = {
        "subject": "the guard's verdicts",
        "corruptions": len({row["what"] for row in planted}),
        "corrupted_runs": len(planted),
        "corrupted_runs_rejected": sum(row["verdict"].verdict == "unsafe" for row in planted),
        "honest_runs": len(honest),
        "honest_runs_rejected": sum(row["verdict"].verdict == "unsafe" for row in honest),
        "table": table,
    }
    for name, entry in table.items():
        print(f"{name:32} {entry['rejected']:4} of {entry['runs']:4} rejected", *entry["missed"][:2])
    print({name: value for name, value in result.items() if name != "table"})
    write("guard", result, chosen.out)


if __name__ == "__main__":
    main()
