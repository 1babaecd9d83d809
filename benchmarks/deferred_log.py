"""What logging the loss at every step costs: `.item()` against `flatout.log`, by turns in one process.

Blocks of steps that log nothing, that read the loss with `.item()` and write it to a file, and that give it
to `flatout.log`, take turns in random order; each round compares its own neighbours, so that the machine's
moods cancel. A block ends when the device has done all of it. On a GPU a read makes the host wait for every
step, so that the device waits for the host in its turn; on a CPU there is nothing to wait for, and what is
shown is what the call itself costs a tiny step.

    python -m benchmarks.deferred_log
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import flatout
from benchmarks.by_turns import median_of
from benchmarks.machine import write

KINDS = ("nothing", "item", "flatout.log")

Step = Callable[[], Any]
Way = Callable[[int, Any], None]


def small(device: str) -> Step:
    """A model of which the host is the slower half: that is where reads hurt."""
    torch.manual_seed(0)
    width, layers = (256, 8) if device == "cuda" else (16, 2)
    blocks = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)]
    model = nn.Sequential(*blocks, nn.Linear(width, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(width, width, device=device)

    def step() -> Any:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def block(step: Step, way: Way, steps: int, device: str) -> float:
    """Seconds a step, to the end of what the device has to do."""
    way(0, step())
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    for number in range(steps):
        way(number, step())
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps


def compare(step: Step, device: str, rounds: int, steps: int) -> dict[str, Any]:
    """Each way against logging nothing, round by round."""
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "item.jsonl").open("a") as file:
        flatout.log.to("jsonl", Path(folder) / "log.jsonl")

        def read(number: int, loss: Any) -> None:
            file.write(json.dumps({"step": number, "loss": loss.item()}) + "\n")
            file.flush()

        ways: dict[str, Way] = {
            "nothing": lambda _number, _loss: None,
            "item": read,
            "flatout.log": lambda number, loss: flatout.log({"loss": loss}, step=number),
        }
        taken: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for _ in range(20):
            step()
        for _ in range(rounds):
            for kind in random.sample(KINDS, len(KINDS)):
                taken[kind].append(block(step, ways[kind], steps, device))
        if not flatout.log.flush(60) or flatout.log.dropped:
            raise SystemExit(f"not everything was logged: {flatout.log.dropped} dropped")
        flatout.log.close()
    return {
        "step_us": {kind: 1e6 * statistics.median(times) for kind, times in taken.items()},
        "item_against_nothing": _ratio(taken["item"], taken["nothing"]),
        "log_against_nothing": _ratio(taken["flatout.log"], taken["nothing"]),
        "item_against_log": _ratio(taken["item"], taken["flatout.log"]),
        "rounds": rounds,
        "steps_a_block": steps,
    }


def _ratio(these: list[float], those: list[float]) -> dict[str, Any]:
    """The median of the rounds' ratios, and 95 % bounds of it by bootstrap."""
    median, *bounds = median_of([this / that for this, that in zip(these, those, strict=True)])
    return {"median": median, "95": bounds}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out")
    chosen = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        torch.set_num_threads(1)  # else threads fight for cores, and nothing can be told apart
    result = {"subject": "logging the loss at every step", "device": device}
    result |= compare(small(device), device, chosen.rounds, chosen.steps)
    print(json.dumps(result, indent=1))
    write("deferred-log", result, chosen.out)


if __name__ == "__main__":
    main()
