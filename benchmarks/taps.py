"""What watching costs: host time of the taps a step, and a paired bound on the step-time cost of a real job.

Host time is what a step of a tiny model, which is all host time, takes longer when it is watched. Bare and
watched blocks of steps take turns in one process, and each round compares its own neighbours, so that the
machine's moods cancel; steps of over twice the block's median are the machine's pauses and are left out of
both. The first steps of a block, in which taps learn who trains, are left out too. What our thread takes to
write a step's events down is measured by itself, and counts. "First": each step is looked at closely, as in
the first 256 updates of a job; "later": as after.

    python -m benchmarks.taps                # on a GPU: a tiny model for host time, GPT-2 124M for the step
"""

import argparse
import itertools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.by_turns import median_of
from benchmarks.machine import write
from flatout.inside.session import Session
from flatout.inside.writer import encode
from flatout.records.session import Order

SKIP = 6
# From this update on, the parts of a step are looked at only now and then.
LATER = 256
# From this one on, device events at the borders of parts are recorded in one step of sixteen.
SETTLED = 64

Step = Callable[[], None]


def tiny(device: str) -> Step:
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


def gpt(device: str) -> Step:
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


def block(step: Step, steps: int, watched: str, device: str, *, each: bool) -> tuple[float, float]:
    """Seconds of a step in one block, and of writing its events; `watched` is "", "first" or "later".

    `each`: by the times of single steps, for a job that the host alone holds up; else by the whole block.
    """
    with tempfile.TemporaryDirectory() as folder:
        session = Session(torch, Order(folder=folder)) if watched else None
        if session is not None:
            session.arm()
        for _ in range(SKIP if watched else 1):
            step()
        if session is not None:
            session.updates = LATER if watched == "later" else SETTLED
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        times = [time.perf_counter()]
        for _ in range(steps):
            step()
            times.append(time.perf_counter())
        if device == "cuda":
            torch.cuda.synchronize()
        took = (time.perf_counter() - times[0]) / steps
        if each:
            taken = [after - before for before, after in itertools.pairwise(times)]
            usual = statistics.median(taken)
            took = statistics.fmean(value for value in taken if value < 2 * usual)
        writing = _writing(session, steps) if session is not None else 0.0
        if session is not None:
            session.finish()
            session.disarm()
            if session.failed:
                raise SystemExit(f"taps failed: {session.failed}")
    return took, writing


def _writing(session: Session, steps: int) -> float:
    """Seconds a step to put the events that wait into the words of the file; they go back into the queue."""
    events = session.log.drain()
    started = time.perf_counter()
    encode(events)
    took = time.perf_counter() - started
    for event in events:
        session.log.add(event)
    return took / steps


def compare(step: Step, device: str, rounds: int, steps: int, *, each: bool) -> dict[str, dict[str, float]]:
    """Bare blocks against both kinds of watched ones."""
    for _ in range(20):
        step()
    kinds = ["", "first", "later"]
    taken: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind in random.sample(kinds, len(kinds)):
            taken[kind].append(block(step, steps, kind, device, each=each))
    return {kind: _summary(taken[""], taken[kind], steps) for kind in ("first", "later")}


def _summary(
    bare: list[tuple[float, float]], watched: list[tuple[float, float]], steps: int
) -> dict[str, Any]:
    """The median round, and 95 % bounds of it by bootstrap."""
    usual = statistics.median(took for took, _ in bare)
    added = [seen - unseen for (seen, _), (unseen, _) in zip(watched, bare, strict=True)]
    writing = statistics.median(took for _, took in watched)
    middle, low, high = (value + writing for value in median_of(added))
    return {
        "bare_step_us": 1e6 * usual,
        "added_us": 1e6 * middle,
        "added_us_95": [1e6 * low, 1e6 * high],
        "of_it_writing_us": 1e6 * writing,
        "added_share": middle / usual,
        "added_share_upper_95": high / usual,
        "rounds": len(bare),
        "steps_a_block": steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", choices=("tiny", "gpt"))
    parser.add_argument("--out")
    chosen = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    result: dict[str, Any] = {"subject": "cost of watching"}
    if chosen.only != "gpt":
        result["tiny"] = compare(tiny(device), device, 15 * chosen.rounds, 48, each=True)
    if chosen.only != "tiny":
        result["gpt"] = compare(gpt(device), device, chosen.rounds, 6, each=False)
    print(json.dumps(result, indent=1))
    write("taps", result, chosen.out)


if __name__ == "__main__":
    main()
