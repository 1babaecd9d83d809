"""What watching costs: host time of the taps a step, and a paired bound on the step-time cost of a real job.

Host time is what a step of a tiny model, which is all host time, takes longer when it is watched: the work of
our thread counts too. Watched and bare blocks alternate in one process, so that the machine's moods hit both
alike. The first steps of a block, in which taps learn who trains, are left out.

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

SKIP = 4


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


def block(step: Callable[[], None], steps: int, watched: bool, folder: str, device: str) -> list[float]:
    """Seconds of each step of one block; with a synchronize at its ends only, so the mean is what counts."""
    session = Session(torch, Order(folder=folder)) if watched else None
    if session is not None:
        session.arm()
    for _ in range(SKIP):
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
    return [took]


def compare(
    make: Callable[[str], Callable[[], None]], device: str, blocks: int, steps: int
) -> dict[str, float]:
    step = make(device)
    for _ in range(20):
        step()
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(blocks):
            order = [False, True]
            random.shuffle(order)
            took = {
                watched: statistics.fmean(block(step, steps, watched, folder, device)) for watched in order
            }
            pairs.append((took[False], took[True]))
    differences = [watched - bare for bare, watched in pairs]
    ratios = [watched / bare - 1 for bare, watched in pairs]
    error = statistics.stdev(ratios) / math.sqrt(len(ratios))
    return {
        "bare_step_us": 1e6 * statistics.median(bare for bare, _ in pairs),
        "added_us": 1e6 * statistics.median(differences),
        "added_mean_us": 1e6 * statistics.fmean(differences),
        "added_share": statistics.fmean(ratios),
        "added_share_upper_95": statistics.fmean(ratios) + 1.645 * error,
        "blocks": blocks,
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
        "tiny": compare(tiny, device, 3 * chosen.blocks, 400),
        "gpt": compare(gpt, device, chosen.blocks, 20 if device == "cuda" else 10),
    }
    for name in ("tiny", "gpt"):
        print(name, json.dumps(result[name], indent=1))
    write("taps", result, chosen.out)


if __name__ == "__main__":
    main()
