"""Which steps of a rank count, and how long they took: not the warm-up, not what was recorded."""

import dataclasses
import statistics
from typing import Any

from flatout.analyze.steady import Steady, find_steady, median_interval, percentile
from flatout.analyze.steps import RankSteps
from flatout.records.step import StepTimes

# Below this share of steps with device times, the host's clock is the better witness.
_ENOUGH_DEVICE_TIMES = 0.6
# What a step has, if the ones before had it.
_IN_EACH_STEP = ("forwards", "backwards", "samples")


@dataclasses.dataclass(frozen=True)
class Window:
    """The timed steps of one rank, the steady ones among them, and their times in milliseconds."""

    steps: tuple[dict[str, Any], ...]
    steady: Steady
    chosen: tuple[dict[str, Any], ...]
    times: tuple[float, ...]
    on_device: bool

    @property
    def watched(self) -> tuple[dict[str, Any], ...]:
        """The steady steps whose parts were looked at: all of the first ones, some of the later ones."""
        watched = tuple(step for step in self.chosen if step["watched"])
        fewest = {name: min((one[name] for one in watched[:-1]), default=0) for name in _IN_EACH_STEP}
        if any(watched[-1][name] < fewest[name] for name in _IN_EACH_STEP if watched):
            # When a trial is asked to end, watching begins in the midst of a step.
            watched = watched[:-1]
        return watched or self.chosen


def window_of(rank: RankSteps) -> Window:
    """The steps of a rank that count: not the one in which operations were counted, not the warm-up."""
    timed = rank.about.get("timed_updates", len(rank.steps))
    kept = dataclasses.replace(rank, steps=tuple(one for one in rank.steps[:timed] if not one["recorded"]))
    device = [value for value in kept.device_ms() if value is not None]
    on_device = len(device) >= _ENOUGH_DEVICE_TIMES * max(1, len(kept.steps) - 2) and len(device) > 0
    walls = kept.wall_ms()
    series = [
        value if on_device and value is not None else wall
        for value, wall in zip(kept.device_ms(), walls, strict=True)
    ]
    steady = find_steady(series, [bool(step["compiles"] or step["recordings"]) for step in kept.steps])
    start = steady.start if len(series) - steady.start >= 1 else max(0, len(series) - 1)
    chosen = kept.steps[start:]
    times = [value for value in (kept.device_ms()[start:] if on_device else series[start:]) if value]
    return Window(kept.steps, steady, chosen, tuple(times or series[start:]), on_device)


def step_times(window: Window) -> StepTimes | None:
    """Median with its interval, and the slowest; None where there are too few."""
    interval = median_interval(window.times)
    if interval is None:
        return None
    return StepTimes(
        p50=interval.median,
        p95=percentile(window.times, 0.95),
        mean=statistics.fmean(window.times),
        low=interval.low,
        high=interval.high,
        clock="device" if window.on_device else "host",
    )
