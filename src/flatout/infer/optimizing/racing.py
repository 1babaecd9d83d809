"""Two ways of running a module, by turns on the same inputs, until it is clear which is faster."""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from flatout.limits.timing import Stopwatch
from flatout.records.inference import Goal
from flatout.tune.arms import mean_and_half_width

Call = Callable[[], Any]

_BLOCK_S = 0.04
_FEWEST_CALLS, _MOST_CALLS = 3, 200
_FEWEST_CYCLES, _MOST_CYCLES = 4, 14
# Known as precisely as this, a speedup is known.
_PRECISION = 0.01
# By less than this, a way is not faster.
MATTERS = 0.01
# So far from even, two cycles tell.
_FAR = 0.2
_PATIENCE = 3.0


@dataclasses.dataclass(frozen=True)
class Raced:
    """Milliseconds of a call by each, and how many times as fast the second is, with its 95 % interval."""

    first_ms: float
    second_ms: float
    speedup: float
    low: float
    high: float

    def is_faster(self, by: float = MATTERS) -> bool:
        """Beyond doubt, and by enough to matter."""
        return self.low > 1.0 and self.speedup >= 1 + by


class Race:
    """Takes times as the goal wants them: of one call until its result is there, or of a call among many."""

    def __init__(self, device: torch.device, goal: Goal, most_s: float = 6.0) -> None:
        self._watch = Stopwatch(torch, str(device))
        self._goal = goal
        self._most_s = most_s

    def run(self, first: Call, second: Call) -> Raced:
        """By turns; the one that begins changes from cycle to cycle."""
        calls = (first, second)
        counts = [self._count(call) for call in calls]
        taken: list[list[float]] = [[], []]
        began = time.monotonic()
        for cycle in range(_MOST_CYCLES):
            for turn in (0, 1) if cycle % 2 == 0 else (1, 0):
                taken[turn].append(self._block(calls[turn], counts[turn]))
            if self._is_clear(taken, time.monotonic() - began):
                break
        return _raced(taken)

    def _count(self, call: Call) -> int:
        """Calls that make a block; the first of them pay for what happens once."""
        for _ in range(2):
            call()
        self._watch.synchronize()
        began = time.perf_counter()
        call()
        self._watch.synchronize()
        once_s = max(time.perf_counter() - began, 1e-7)
        return int(min(_MOST_CALLS, max(_FEWEST_CALLS, _BLOCK_S / once_s)))

    def _block(self, call: Call, count: int) -> float:
        if self._goal == "throughput" and not self._watch.on_cpu:
            return 1e3 * self._watch.burst(call, count, lead=1)
        call()
        self._watch.synchronize()
        seconds = []
        for _ in range(count):
            began = time.perf_counter()
            call()
            self._watch.synchronize()
            seconds.append(time.perf_counter() - began)
        return 1e3 * statistics.median(seconds)

    def _is_clear(self, taken: list[list[float]], spent_s: float) -> bool:
        cycles = len(taken[0])
        if cycles < 2:
            return False
        found = _raced(taken)
        # What looks much faster, and is not certain yet, gets more time: the machine may be busy.
        promising = found.speedup > 1 + _FAR and found.low <= 1.0
        most_s = self._most_s * (_PATIENCE if promising else 1.0)
        if spent_s > most_s or (found.high / found.low - 1) / 2 <= _PRECISION:
            return cycles >= _FEWEST_CYCLES or spent_s > most_s
        far = abs(math.log(found.speedup)) > _FAR
        decided = found.low > 1 + MATTERS or found.high < 1.0
        return decided and cycles >= (2 if far else _FEWEST_CYCLES)


def _raced(taken: list[list[float]]) -> Raced:
    middle, half = mean_and_half_width([math.log(one / other) for one, other in zip(*taken, strict=True)])
    return Raced(
        statistics.median(taken[0]),
        statistics.median(taken[1]),
        math.exp(middle),
        math.exp(middle - half),
        math.exp(min(middle + half, 700.0)),
    )
