"""How a process trains at the moment, from its steps as they come: memory does not grow with their number.

Hosts run ahead of devices and then wait, so single steps say little: they are put together to blocks of some
length, and the median of the last blocks is the pace.
"""

import bisect
import math
import statistics
from collections import deque
from typing import Any

from flatout.analyze.steps import loss_of
from flatout.records.live import STEP_BUCKETS_S, StepTimes

_NS = 1e-9
# A block lasts at least so long; the pace is the median of so many, and known after a few.
_BLOCK_S = 0.5
_BLOCKS = 20
_BLOCKS_TO_KNOW = 3
# Stretches of blocks that are held against the best: two slow ones after each other are a slowdown.
_STRETCH = 8
_SLOWER, _AS_BEFORE = 1.2, 1.1
# Steps that were looked at closely, of which the share of waiting and the size of a batch are taken.
_WATCHED = 32
_EPOCHS = 20


class Blocks:
    """The pace, the best that it has been, and how often it became slower."""

    def __init__(self) -> None:
        self._steps = 0
        self._took_s = 0.0
        self._means: deque[float] = deque(maxlen=_BLOCKS)
        self._stretch: list[float] = []
        self._best_stretch_s: float | None = None
        self._slow_stretches = 0
        self._is_slow = False
        self.best_s: float | None = None
        self.slowdowns = 0

    def add(self, took_s: float) -> None:
        """One more step."""
        self._steps += 1
        self._took_s += took_s
        if self._took_s < _BLOCK_S:
            return
        self._means.append(self._took_s / self._steps)
        self._stretch.append(self._means[-1])
        self._steps, self._took_s = 0, 0.0
        if len(self._means) >= _BLOCKS_TO_KNOW:
            now_s = statistics.median(self._means)
            self.best_s = now_s if self.best_s is None else min(self.best_s, now_s)
        if len(self._stretch) == _STRETCH:
            self._judge(statistics.median(self._stretch))
            self._stretch = []

    def median_s(self) -> float | None:
        """Of the last blocks; of the only steps there are, where these are few."""
        if self._means:
            return statistics.median(self._means)
        return self._took_s / self._steps if self._steps else None

    def _judge(self, median_s: float) -> None:
        if self._best_stretch_s is None or median_s < self._best_stretch_s:
            self._best_stretch_s = median_s
        ratio = median_s / self._best_stretch_s
        self._slow_stretches = self._slow_stretches + 1 if ratio > _SLOWER else 0
        if self._slow_stretches == 2 and not self._is_slow:
            self._is_slow = True
            self.slowdowns += 1
        elif ratio < _AS_BEFORE:
            self._is_slow = False


class Epochs:
    """How long passes over the data take, by when the training's loaders were started."""

    def __init__(self) -> None:
        self._began: tuple[int, int] | None = None
        self._took: deque[tuple[float, int]] = deque(maxlen=_EPOCHS)

    def take(self, step: dict[str, Any]) -> None:
        """A loader that was started in this step begins a pass. One start a step is no pass, but a habit."""
        if not step["loaders"].get(-1):
            return
        now = (int(step["started_ns"]), int(step["update"]))
        if self._began is not None and now[1] - self._began[1] > 1:
            self._took.append(((now[0] - self._began[0]) * _NS, now[1] - self._began[1]))
        self._began = now

    def median_s(self) -> float | None:
        """Of the last ones that are over, with the evaluations in them."""
        return statistics.median(took for took, _ in self._took) if self._took else None

    def median_steps(self) -> float | None:
        """How many updates they had."""
        return statistics.median(steps for _, steps in self._took) if self._took else None


class RankPace:
    """One process that trains."""

    def __init__(self) -> None:
        self.updates = 0
        # When the first and the last update ended, by the machine's steady clock.
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.blocks = Blocks()
        self.epochs = Epochs()
        self.loss: float | None = None
        self.memory_peak_bytes: int | None = None
        self.samples = self.tokens = 0
        self.data_wait_s = self.evaluation_s = 0.0
        self.losses_not_finite = self.skipped_updates = 0
        self._counts = [0] * (len(STEP_BUCKETS_S) + 1)
        self._sum_s = 0.0
        # Of steps that were looked at: seconds, of which waiting, samples, tokens.
        self._watched: deque[tuple[float, float, int, int]] = deque(maxlen=_WATCHED)

    def take(self, step: dict[str, Any]) -> None:
        """A step is complete."""
        self.updates = max(self.updates, int(step["update"]))
        self.last_s = step["ended_ns"] * _NS
        self.first_s = self.last_s if self.first_s is None else self.first_s
        self._note_numbers(step)
        self.epochs.take(step)
        self.evaluation_s += step["evaluation_ns"] * _NS
        self.skipped_updates += step["skipped_updates"]
        took_s = max(step["ended_ns"] - step["started_ns"] - step["evaluation_ns"], 0) * _NS
        is_first = step["update"] == 1  # began when torch was imported
        if step["watched"] and not is_first:
            wait_s = step["loader_ns"] * _NS
            self._watched.append((took_s, wait_s, step["samples"], step["tokens"]))
        self._count(step, took_s)
        if not is_first:
            self.blocks.add(took_s)
            self._counts[bisect.bisect_left(STEP_BUCKETS_S, took_s)] += 1
            self._sum_s += took_s

    def steps(self) -> StepTimes:
        """All but the first, by how long they took."""
        return StepTimes(counts=tuple(self._counts), sum_s=self._sum_s)

    def data_wait_share(self) -> float | None:
        """Of the last steps that were looked at."""
        took_s = sum(took for took, *_ in self._watched)
        return min(sum(wait for _, wait, *_ in self._watched) / took_s, 1.0) if took_s else None

    def samples_per_s(self) -> float | None:
        """At the pace of the moment."""
        return self._rate([samples for *_, samples, _ in self._watched])

    def tokens_per_s(self) -> float | None:
        """Likewise; None where samples are no tokens."""
        return self._rate([tokens for *_, tokens in self._watched])

    def samples_per_step(self) -> float | None:
        """The mean of the last steps that were looked at."""
        found = [samples for *_, samples, _ in self._watched]
        return statistics.fmean(found) if any(found) else None

    def _rate(self, found: list[int]) -> float | None:
        step_s = self.blocks.median_s()
        return statistics.fmean(found) / step_s if step_s and any(found) else None

    def _count(self, step: dict[str, Any], took_s: float) -> None:
        """Samples and waiting; a step that nobody looked at was like the last that somebody did."""
        if step["watched"]:
            self.samples += step["samples"]
            self.tokens += step["tokens"]
            self.data_wait_s += step["loader_ns"] * _NS
        elif self._watched:
            like_s, wait_s, samples, tokens = self._watched[-1]
            self.samples += samples
            self.tokens += tokens
            self.data_wait_s += took_s * min(wait_s / like_s, 1.0) if like_s else 0.0

    def _note_numbers(self, step: dict[str, Any]) -> None:
        loss = loss_of(step)
        if loss is not None:
            self.loss = loss
            self.losses_not_finite += not math.isfinite(loss)
        held = step.get("reserved_peak_bytes", step.get("host_peak_bytes"))
        if held is not None:
            self.memory_peak_bytes = max(self.memory_peak_bytes or 0, held)
