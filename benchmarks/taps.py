"""What watching costs: host time of the taps a step, and a paired bound on the step-time cost of a real job.

Host time is what a step of a tiny model, which is all host time, takes longer when it is watched: the work of
our thread counts too. Watched and bare blocks alternate in one process, so that the machine's moods hit both
alike. The first steps of a block, in which taps learn who trains, are left out. "First": the parts of each
step are looked at, as in the first 256 updates of a job; "later": as after them.

    python -m benchmarks.taps                # on a GPU: a tiny model for host time, GPT-2 124M for the step
"""

import argparse
import json
import math
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
    """GPT-2 124M as in examples/gpt.py (or a small one on the CPU), in bf16 autocast: a brisk job."""
    from examples.gpt import GPT

    large = device == "cuda"
    model = GPT(50257, 1024, 768, 12, 12).to(device) if large else GPT(1000, 128, 128, 4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=large)
    tokens = torch.randint(1000, (4, 1024 if large else 128))

    def step() -> None:
        x = tokens.to(device)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=large):
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
    if session is not None and watched == "later":
        session.updates = LATER
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
    differences = [one - other for one, other in zip(watched, bare, strict=True)]
    ratios = [one / other - 1 for one, other in zip(watched, bare, strict=True)]
    # Interrupted blocks lie far out on both sides: a trimmed mean, and the spread of what is left.
    kept = sorted(ratios)[len(ratios) // 10 : len(ratios) - len(ratios) // 10]
    error = statistics.stdev(kept) / math.sqrt(len(kept))
    return {
        "bare_step_us": 1e6 * statistics.median(bare),
        "added_us": 1e6 * statistics.median(differences),
        "added_share": statistics.fmean(kept),
        "added_share_upper_95": statistics.fmean(kept) + 1.645 * error,
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
        "tiny": compare(tiny, device, 2 * chosen.blocks, 160),
        "gpt": compare(gpt, device, chosen.blocks, 20 if device == "cuda" else 10),
    }
    for name in ("tiny", "gpt"):
        print(name, json.dumps(result[name], indent=1))
    write("taps", result, chosen.out)


if __name__ == "__main__":
    main()
