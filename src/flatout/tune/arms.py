"""Levers compared by turns in one running job, and how sure the comparison is."""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any

from flatout.analyze.steps import NS_PER_MS
from flatout.records.plan import Choice

Arm = tuple[Choice, ...]

# The first steps of a block belong to the switch: allocators, caches and clocks settle. Of slow ones, one.
_SETTLING = 2
_SLOW_MS = 60.0
_SLOW_BLOCK = 4
_ENOUGH_TO_TRIM = 5
_COMPILES_AT_MOST = 5
# Of a speedup, in logarithms: from so far away of what was asked, two cycles tell.
_FAR = 0.1
# Beyond it a number is larger than any.
_LARGEST_LOGARITHM = 700.0
_FEWEST_IF_FAR = 2
_HOST_WORK = ("forward_ns", "backward_ns", "optimizer_ns", "clipping_ns")
# Of the t distribution: 95 % of the mean of n values lie within so many standard errors.
_STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ask:
    """A comparison that the search wants: the first arm is what the others are measured against."""

    arms: tuple[Arm, ...]
    what: str
    # Relative to the speedup.
    precision: float = 0.01
    fewest_cycles: int = 4
    most_cycles: int = 14
    # Enough when it is clear on which side of this speedup each arm lies, however imprecise it still is.
    threshold: float | None = None
    # Steps in which nothing is compiled may take so long together; what is not clear by then stays so.
    most_seconds: float = 30.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArmResult:
    """What one arm gave. Speedups are over the first arm, cycle by cycle; without a time it failed."""

    step_ms: float | None
    speedup: float | None = None
    low: float | None = None
    high: float | None = None
    # What its steps that compiled took.
    compile_s: float = 0.0
    # The share of a step in which the host was at work for the model and the optimizer.
    host_share: float | None = None
    failed: str = ""

    def is_faster(self, by: float) -> bool:
        """Beyond doubt, and by enough to matter."""
        return self.low is not None and self.low > 1.0 and (self.speedup or 0.0) >= 1.0 + by


class Comparison:
    """Collects the steps of one generation of arms, block by block."""

    def __init__(self, ask: Ask, generation: int, blocks: Sequence[int]) -> None:
        self.ask = ask
        self.generation = generation
        # By arm, how many updates a block has: all take about as long.
        self.block_updates = list(blocks)
        # By arm, the blocks in which it was on: times of the steps that count.
        self._blocks: list[list[list[float]]] = [[] for _ in ask.arms]
        self._compile_ms = [0.0 for _ in ask.arms]
        # The blocks in which it compiled: once is the price, in every other block it never ends.
        self._compiled_in: list[set[int]] = [set() for _ in ask.arms]
        self._host_shares: list[list[float]] = [[] for _ in ask.arms]
        self._spent_ms = 0.0
        self.failed: dict[int, str] = {}
        # Arms of which enough is known: they take no more turns.
        self.settled: set[int] = set()

    def take(self, step: dict[str, Any]) -> None:
        """One step of the job."""
        place = step.get("arm")
        if place is None or place[0] != self.generation:
            return
        arm, in_block = place[1], step["in_block"]
        if in_block == 1:
            self._blocks[arm].append([])
        wall_ms = (step["ended_ns"] - step["started_ns"] - step["evaluation_ns"]) / NS_PER_MS
        if step["compiles"]:
            self._compile_ms[arm] += wall_ms
            self._compiled_in[arm].add(len(self._blocks[arm]))
            if len(self._compiled_in[arm]) > _COMPILES_AT_MOST:
                self.failed.setdefault(arm, "it compiles again and again: shapes or values keep changing")
        else:
            self._spent_ms += wall_ms
        is_a_start = step["compiles"] or step["recordings"]
        if in_block <= _settling(self.block_updates[arm]) or is_a_start or not self._blocks[arm]:
            return
        device = step.get("device_ms") if not step["evaluations"] else None
        self._blocks[arm][-1].append(device if device is not None else wall_ms)
        if wall_ms > 0:
            self._host_shares[arm].append(sum(step[name] for name in _HOST_WORK) / NS_PER_MS / wall_ms)

    def is_enough(self) -> bool:
        """Whether the speedups are known as precisely as was asked, or will not be."""
        self.settle()
        return len(self.settled | set(self.failed) | {0}) == len(self.ask.arms)

    def settle(self) -> None:
        """Find the arms of which enough is known."""
        cycles = len(self._whole(0))
        for arm, result in enumerate(self.results()):
            own = min(cycles, len(self._whole(arm)))
            if arm and arm not in self.settled and self._is_clear(result, own):
                self.settled.add(arm)

    def _is_clear(self, result: ArmResult, cycles: int) -> bool:
        if cycles >= self.ask.most_cycles:
            return True
        if cycles >= _FEWEST_IF_FAR and self._spent_ms > 1000 * self.ask.most_seconds:
            return True
        if result.low is None or result.high is None or result.speedup is None:
            return False
        threshold = self.ask.threshold
        if threshold is not None and not result.low <= threshold <= result.high:
            # Two cycles can agree by chance; not on something that far away.
            far = abs(math.log(max(result.speedup, 1e-9) / threshold)) > _FAR
            return cycles >= (_FEWEST_IF_FAR if far else self.ask.fewest_cycles)
        half = (result.high - result.low) / 2
        return cycles >= self.ask.fewest_cycles and half <= self.ask.precision * result.speedup

    def results(self) -> list[ArmResult]:
        """One for each arm."""
        means = [
            [statistics.median(block) for block in self._whole(arm)] for arm in range(len(self.ask.arms))
        ]
        return [self._result(arm, means) for arm in range(len(self.ask.arms))]

    def _result(self, arm: int, means: list[list[float]]) -> ArmResult:
        if arm in self.failed:
            return ArmResult(step_ms=None, failed=self.failed[arm])
        if not means[arm] or not means[0]:
            return ArmResult(step_ms=None, failed="it made too few steps")
        # Logarithms: twice as fast and half as fast are as far from 1, and nothing is slower than never.
        ratios = [math.log(base / own) for base, own in zip(means[0], means[arm], strict=False)]
        middle, half = mean_and_half_width(ratios)
        return ArmResult(
            step_ms=statistics.median(means[arm]),
            speedup=math.exp(middle),
            low=math.exp(middle - half),
            high=_exp(middle + half),
            compile_s=self._compile_ms[arm] / 1000,
            host_share=statistics.median(self._host_shares[arm]) if self._host_shares[arm] else None,
        )

    def _whole(self, arm: int) -> list[list[float]]:
        """Blocks that are complete enough to count: a step or two may have been lost to an evaluation."""
        updates = self.block_updates[arm]
        wanted = max(1, (updates - _settling(updates)) // 2)
        return [block for block in self._blocks[arm] if len(block) >= wanted]


def _exp(value: float) -> float:
    return math.exp(value) if value < _LARGEST_LOGARITHM else math.inf


def mean_and_half_width(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half of its 95 % interval; one value alone could be anything.

    Of five and more the two ends are pulled in to their neighbours: a single disturbance does not decide.
    """
    ordered = sorted(values)
    if len(ordered) >= _ENOUGH_TO_TRIM:
        ordered = [ordered[1], *ordered[1:-1], ordered[-2]]
    middle = statistics.fmean(ordered)
    n = len(ordered)
    if n < 2:
        return middle, math.inf
    # With its ends pulled in, the spread looks smaller than it is.
    inflation = (n - 1) / (n - 3) if n >= _ENOUGH_TO_TRIM else 1.0
    return middle, inflation * _STUDENT.get(n, 2.15) * statistics.stdev(ordered) / math.sqrt(n)


def block_length(step_ms: float) -> int:
    """Steps of a block: about a quarter of a second, and never so few that the switch counts."""
    if step_ms >= _SLOW_MS:
        return _SLOW_BLOCK
    return max(6, min(60, round(250 / max(step_ms, 0.01)))) + _SETTLING


def _settling(block_updates: int) -> int:
    return 1 if block_updates <= _SLOW_BLOCK else _SETTLING
