"""What watching costs: host time of the taps a step, and a paired bound on the step-time cost of a real job.

Host time is what a step of a tiny model, which is all host time, takes longer when it is watched: the work of
our thread counts too. Watched and bare blocks alternate in one process, so that the machine's moods hit both
alike; the quick blocks of both are compared. The first steps of a block, in which taps learn who trains, are
left out. "First": each step is looked at closely, as in the first 256 updates of a job; "later": as after.

    python -m benchmarks.taps                # on a GPU: a tiny model for host time, GPT-2 124M for the step
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.machine import write
from flatout.inside.session import Session
from flatout.records.session import Order

SKIP = 6
# From this update on, the parts of a step are looked at only now and then.
LATER = 256
# From this one on, device events at the borders of parts are recorded in one step of sixteen.
SETTLED = 64


def tiny(device: str) -> Callable[[], None]:
    """A step that costs next to nothing on the device: host time is all there is."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = DataLoader(TensorDataset(torch.randn(1 << 14, 64)), batch_size=16)
    batches = iter(data)

    def step() -> None:
        nonlocal batches
        try:
            (x,) = next(batches)
        except StopIteration:
            batches = iter(data)
            (x,) = next(batches)
        x = x.to(device)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def gpt(device: str) -> Callable[[], None]:
    """The job of examples/gpt.py, 124 M parameters as written (a small one on the CPU)."""
    from examples.gpt import GPT

    large = device == "cuda"
    model = GPT(50257, 1024, 768, 12, 12).to(device) if large else GPT(1000, 128, 128, 4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(1000, (4, 1024 if large else 128))

    def step() -> None:
        x = tokens.to(device)
        logits = model(x)
        loss = nn.functional.cross_entropy(logits.view(-1, logits.size(-1)), x.view(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def block(step: Callable[[], None], steps: int, watched: str, folder: str, device: str) -> float:
    """Seconds of a step in one block: bare, watched as in its first updates, or as in later ones."""
    session = Session(torch, Order(folder=folder)) if watched else None
    if session is not None:
        session.arm()
    for _ in range(SKIP):
        step()
    if session is not None:
        session.updates = LATER if watched == "later" else SETTLED
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(steps):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    took = (time.perf_counter() - started) / steps
    if session is not None:
        session.finish()
        session.disarm()
        if session.failed:
            raise SystemExit(f"taps failed: {session.failed}")
    return took


def compare(
    make: Callable[[str], Callable[[], None]], device: str, blocks: int, steps: int
) -> dict[str, dict[str, float]]:
    """Bare blocks against both kinds of watched ones."""
    step = make(device)
    for _ in range(20):
        step()
    taken: dict[str, list[float]] = {"": [], "first": [], "later": []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(blocks):
            for watched in random.sample(list(taken), len(taken)):
                taken[watched].append(block(step, steps, watched, folder, device))
    return {watched: _summary(taken[""], taken[watched], steps) for watched in ("first", "later")}


def _summary(bare: list[float], watched: list[float], steps: int) -> dict[str, float]:
    """The machine only ever adds time: quick blocks are compared with quick ones, by the lower quartile."""
    quick = [statistics.quantiles(times, n=4)[0] for times in (bare, watched)]
    shares = []
    for _ in range(2000):  # a bootstrap of the same comparison
        again = [
            statistics.quantiles(random.choices(times, k=len(times)), n=4)[0] for times in (bare, watched)
        ]
        shares.append(again[1] / again[0] - 1)
    return {
        "bare_step_us": 1e6 * quick[0],
        "added_us": 1e6 * (quick[1] - quick[0]),
        "added_share": quick[1] / quick[0] - 1,
        "added_share_upper_95": sorted(shares)[int(0.95 * len(shares))],
        "added_us_upper_95": 1e6 * quick[0] * sorted(shares)[int(0.95 * len(shares))],
        "bare_median_us": 1e6 * statistics.median(bare),
        "watched_median_us": 1e6 * statistics.median(watched),
        "blocks": len(bare),
        "steps_a_block": steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--out")
    chosen = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    result = {
        "subject": "cost of watching",
        "tiny": compare(tiny, device, 20 * chosen.blocks, 20),
        "gpt": compare(gpt, device, chosen.blocks, 5),
    }
    for name in ("tiny", "gpt"):
        print(name, json.dumps(result[name], indent=1))
    write("taps", result, chosen.out)


if __name__ == "__main__":
    main()
