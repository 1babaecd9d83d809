"""Ways to make the same step, which take turns in one process: what each costs beside the first.

On a GPU by the clock on the wall. On the CPU by the process's own, on one core: others may be at work.
"""

import random
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

Step = Callable[[], None]
# A step, and what has to be around a block of them.
Way = tuple[Step, Callable[[], AbstractContextManager[Any]]]
_SKIP = 2


def compare(ways: dict[str, Way], rounds: int, steps: int) -> dict[str, Any]:
    """Each way's time relative to the first one's, round by round: the median, with 95 % bounds."""
    first, *others = ways
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name in random.sample(list(ways), len(ways)):
            taken[name].append(_block(*ways[name], steps))
    return {
        "first": first,
        "first_step_ms": 1e3 * statistics.median(taken[first]),
        "rounds": rounds,
        "steps_a_block": steps,
        "ratios": {name: _ratio(taken[name], taken[first]) for name in others},
    }


def alone(step: Step) -> Way:
    """A step with nothing around it."""
    return step, nullcontext


def _block(step: Step, around: Callable[[], AbstractContextManager[Any]], steps: int) -> float:
    with around():
        for _ in range(_SKIP):
            step()
        _wait()
        started = _clock()
        for _ in range(steps):
            step()
        _wait()
        return (_clock() - started) / steps


def _ratio(taken: list[float], bare: list[float]) -> dict[str, float]:
    ratio, low, high = median_of([one / other for one, other in zip(taken, bare, strict=True)])
    return {"ratio": ratio, "low_95": low, "high_95": high}


def median_of(values: list[float]) -> tuple[float, float, float]:
    """The median, and 95 % bounds of it by bootstrap."""
    again = sorted(statistics.median(random.choices(values, k=len(values))) for _ in range(2000))
    return statistics.median(values), again[50], again[1949]


def _clock() -> float:
    return time.perf_counter() if torch.cuda.is_available() else time.process_time()


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
