"""A training with checkpoints, killed again and again at random moments: does it learn what it would have?

    python -m benchmarks.kills [--kills 200] [--signal KILL|TERM] [--workers 0|2] [--out FOLDER]

Every loss of every life is held against that of a training that nobody disturbed, bit for bit.
"""

import argparse
import contextlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import write
from flatout.runtime.checkpoint.store import checkpoints, verify
from flatout.runtime.checkpoint.writer import at_work_in

JOB = """
import random, sys
import numpy as np, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
import flatout
torch.set_num_threads(1)
torch.manual_seed(1); random.seed(2); np.random.seed(3)
class Drawn(Dataset):
    def __len__(self): return 200
    def __getitem__(self, place):
        return torch.randn(64) + random.random() + float(np.random.rand()) + place / 200
model = nn.Sequential(nn.Linear(64, 256), nn.Dropout(0.2), nn.Linear(256, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Drawn(), batch_size=8, shuffle=True, num_workers=int(sys.argv[3]))
steps = int(sys.argv[4])
log = open(sys.argv[2], "a")
print("alive", flush=True)
with flatout.Checkpointer(sys.argv[1], every=3, model=model, optimizer=optimizer, loader=loader) as kept:
    step = kept.resume()
    while step < steps:
        for batch in kept.loader:
            loss = model(batch).pow(2).mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            step += 1
            log.write(f"{step} {loss.item().hex()}\\n"); log.flush()
            kept.step(step)
            if step == steps: break
"""


def lived(folder: Path, workers: int, steps: int, after_s: float | None, number: int) -> tuple[int, float]:
    """One life: its exit code, and the seconds from the signal to its end."""
    command = [
        sys.executable,
        "-c",
        JOB,
        str(folder / "kept"),
        str(folder / "losses"),
        str(workers),
        str(steps),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as job:
        assert job.stdout is not None
        job.stdout.readline()
        if after_s is not None:
            time.sleep(after_s)
            job.send_signal(number)
        began = time.monotonic()
        return job.wait(), time.monotonic() - began


def losses(folder: Path) -> dict[int, set[str]]:
    """Every loss of every step, as often as it was made; lines that a kill cut short are none."""
    found: dict[int, set[str]] = {}
    for line in (folder / "losses").read_text().splitlines():
        step, _, loss = line.partition(" ")
        if "p" in loss:
            found.setdefault(int(step), set()).add(loss)
    return found


def main() -> None:
    """So many kills, in as many lives as it takes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--signal", choices=("KILL", "TERM"), default="KILL")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument(
        "--most", type=float, default=1.0, help="seconds of a life before it is killed, at most"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="a folder for the result file")
    chosen = parser.parse_args()
    number = getattr(signal, f"SIG{chosen.signal}")
    chance = random.Random(chosen.seed)
    steps = 400 * chosen.kills  # more than any machine makes between so many kills
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        killed, whole = Path(temporary) / "killed", Path(temporary) / "whole"
        killed.mkdir()
        whole.mkdir()
        problems = []
        while len(rows) < chosen.kills:
            after_s = chance.uniform(0.0, chosen.most)
            code, took_s = lived(killed, chosen.workers, steps, after_s, number)
            # Whatever wrote for it may still do so.
            with at_work_in(killed / "kept") if (killed / "kept").exists() else contextlib.nullcontext():
                newest = checkpoints(killed / "kept")
                for one in newest:
                    verify(one.path)
            at = newest[0].step if newest else 0
            rows.append({"after_s": after_s, "exit_code": code, "ended_s": took_s, "newest": at})
            if code not in (-number, 128 + number):
                problems.append(f"life {len(rows)} ended with {code}")
            print(len(rows), rows[-1], flush=True)
        last = rows[-1]["newest"] + 20
        lived(killed, chosen.workers, last, None, number)
        lived(whole, chosen.workers, last, None, number)
        seen, expected = losses(killed), losses(whole)
        problems += [f"step {step} differs" for step in seen if seen[step] != expected.get(step)]
        missing = [step for step in expected if step not in seen]
    result = {
        "signal": chosen.signal,
        "workers": chosen.workers,
        "kills": len(rows),
        "steps": len(seen),
        "problems": problems,
        "steps_missing": missing,
        "slowest_end_s": max(row["ended_s"] for row in rows),
        "rows": rows,
    }
    print({name: value for name, value in result.items() if name != "rows"})
    name = f"kills-{chosen.signal.lower()}-{chosen.workers}-workers"
    write(name, result, str(Path(chosen.out) / f"{name}.json") if chosen.out else None)


if __name__ == "__main__":
    main()
