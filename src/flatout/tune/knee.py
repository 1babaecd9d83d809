"""The batch size at the knee of throughput, in few runs: two sizes tell where the others would be.

A step takes a time that does not depend on the batch and a time for each sample, and so does its memory. Two
executed sizes give both lines; the knee is where they say that a larger batch would hardly be faster, and it
is executed before anybody hears of it. Sizes that were not executed are never an answer.
"""

import dataclasses
import math
import re
import time
from collections.abc import Callable, Iterator

from flatout.records.batch import BatchTrial
from flatout.tune.limits import OUT_OF_TIME

# A size is as good as the fastest where it is within this of it.
KNEE = 0.03
_MOST_TRIALS = 7
# Where two sizes are this far apart, nothing between them is worth a run.
_NEAR = 1.25
_LARGEST_FACTOR = 256
_TWO = 2
# How a run ends that needs more memory than there is; the host's own end of it is a signal.
_RAN_OUT = re.compile(
    "out of memory|OutOfMemory|MemoryError|ALLOC_FAILED|CPUAllocator|killed by signal 9", re.IGNORECASE
)
FITS, TOO_LARGE, TOO_FEW = "fits", "too large", "too few samples"

Run = Callable[[int], BatchTrial]


@dataclasses.dataclass(frozen=True)
class Found:
    """The best of what was executed, and why it ended."""

    best: BatchTrial
    trials: tuple[BatchTrial, ...]
    reason: str


def find_knee(
    first: BatchTrial,
    run: Run,
    *,
    room_bytes: int | None,
    headroom: float,
    most: int | None = None,
    deadline: float = math.inf,
    second: int | None = None,
) -> Found:
    """From the size as written up or down; `first` was executed, and fits. `second` is to come next."""
    beyond = most or first.batch * _LARGEST_FACTOR
    trials = {first.batch: first}
    if second is not None:
        trials[second] = run(second)
    reason = "a larger batch would hardly be faster"
    while len(trials) < _MOST_TRIALS:
        # One size more costs little beside what came before it.
        if len(trials) > 1 and time.monotonic() > deadline:
            reason = OUT_OF_TIME
            break
        most = _most(trials, beyond)
        size = _next(trials, room_bytes, headroom, most)
        if size is None:
            break
        trials[size] = run(size)
    else:
        reason = "enough was tried"
    good = [one for one in trials.values() if one.outcome == FITS]
    rooms = [one for one in good if _has_room(one, room_bytes, headroom)] or [min(good, key=_size)]
    fastest = max(one.samples_per_s or 0.0 for one in rooms)
    best = min((one for one in rooms if (one.samples_per_s or 0.0) >= fastest * (1 - KNEE)), key=_size)
    most = _most(trials, beyond)
    limit = _largest(trials, room_bytes, headroom, most)
    if best.batch == max(map(_size, rooms)) and (len(good) < len(trials) or limit < 2 * best.batch):
        reason = _what_ends_it(trials, best.batch, limit, most, beyond) or reason
    return Found(best, tuple(trials[size] for size in sorted(trials)), reason)


def _what_ends_it(trials: dict[int, BatchTrial], best: int, limit: int, most: int, beyond: int) -> str:
    """Why the largest size that went well is the largest that there is."""
    outcomes = {one.outcome for one in trials.values()}
    failures = sorted(one for one in outcomes - {FITS, TOO_FEW, TOO_LARGE} if not _RAN_OUT.search(one))
    if failures:
        return f"a larger one did not run: {failures[0]}"
    if limit < most or outcomes - {FITS, TOO_FEW}:
        return "a larger one would not fit, or leave too little room"
    if most < beyond:
        return f"no batch of this data set has more than {most} samples"
    if TOO_FEW in outcomes:
        return "this data set has too few samples for a larger one"
    return f"no more than {beyond} was to be tried" if best >= _round(beyond, beyond) else ""


def _most(trials: dict[int, BatchTrial], beyond: int) -> int:
    """The largest size that there can be: where a batch was to be larger, what reached the model."""
    return min([beyond, *(one.reached or beyond for one in _with_end(trials))])


def _with_end(trials: dict[int, BatchTrial]) -> list[BatchTrial]:
    """Where a batch was to be larger than the data set has any, and what it had was seen."""
    return [one for one in trials.values() if one.outcome == TOO_FEW and one.reached]


def _next(trials: dict[int, BatchTrial], room_bytes: int | None, headroom: float, most: int) -> int | None:
    """The size that should be executed next; None where nothing is left to learn."""
    good = sorted((one for one in trials.values() if one.outcome == FITS), key=_size)
    failed = [one.batch for one in trials.values() if one.outcome != FITS]
    largest = min(_largest(trials, room_bytes, headroom, most), min(failed, default=most + 1) - 1)
    top = good[-1]
    if len(good) == 1:
        below = [size for size in (2 * top.batch, round(1.5 * top.batch)) if size <= largest]
        return _untried(below, trials)
    line = _line([(one.batch, one.step_ms or 0.0) for one in good])
    if line is None:
        return None
    wanted = min(largest, _knee(*line, largest))
    # What is next to a size that failed fails alike; where batches end is known if one was seen.
    blind = [one.batch for one in trials.values() if one.outcome != FITS and one not in _with_end(trials)]
    if blind and wanted * _NEAR > min(blind):
        wanted = (top.batch + min(blind)) // 2
    if good[-2].batch * _NEAR < wanted < top.batch / _NEAR:
        return _untried([_round(wanted, largest)], trials)
    if len(good) == _TWO and wanted <= top.batch * _NEAR:
        wanted = min(largest, 2 * top.batch)  # two runs may have been disturbed: a third tells
    if wanted > top.batch * _NEAR:
        # Predictions reach so far and no further: what is eight times as large is another kernel's.
        further = _round(min(wanted, 8 * top.batch), largest)
        # The last percents before the knee are not worth a run, which may compile for minutes.
        if len(good) > _TWO and _gain(*line, top.batch, further) < 1 + KNEE:
            return None
        return _untried([further], trials)
    if failed and top.batch * 2 * _NEAR < min(failed) and _still_grows(good):
        return _untried([_round((top.batch + min(failed)) // 2, largest)], trials)
    return None


def _knee(fixed: float, each: float, largest: int) -> int:
    """From where on samples / (fixed + each * samples) is within KNEE of its limit."""
    if each <= 0:
        return largest
    return math.ceil(fixed / each * (1 - KNEE) / KNEE) if fixed > 0 else 1


def _gain(fixed: float, each: float, now: int, then: int) -> float:
    """How many times as many samples a second another size should give."""
    before, after = fixed / now + each, fixed / then + each
    return before / after if after > 0 else math.inf


def _largest(trials: dict[int, BatchTrial], room_bytes: int | None, headroom: float, most: int) -> int:
    """The largest that should leave the headroom, by the line through what was executed."""
    points = [
        (one.batch, float(one.peak_bytes))
        for one in trials.values()
        if one.outcome == FITS and one.peak_bytes
    ]
    line = _line(points)
    if room_bytes is None or line is None or line[1] <= 0:
        return most
    return min(most, int((room_bytes * (1 - headroom) - line[0]) / line[1]))


def _line(points: list[tuple[int, float]]) -> tuple[float, float] | None:
    """Fixed and for each sample, through the two largest."""
    if len(points) < 2:
        return None
    (less, before), (more, after) = sorted(points)[-2:]
    each = (after - before) / (more - less)
    return after - each * more, each


def _still_grows(good: list[BatchTrial]) -> bool:
    before, after = good[-2].samples_per_s or 0.0, good[-1].samples_per_s or 0.0
    return after > before * (1 + KNEE)


def _round(size: int, largest: int) -> int:
    """To what suits tensor cores, and not above what fits."""
    step = 8 if size >= 16 else 1
    return max(1, min(largest, size // step * step))


def _untried(sizes: list[int], trials: dict[int, BatchTrial]) -> int | None:
    return next((size for size in sizes if size not in trials and size > 0), None)


def _has_room(one: BatchTrial, room_bytes: int | None, headroom: float) -> bool:
    return room_bytes is None or one.peak_bytes is None or one.peak_bytes <= room_bytes * (1 - headroom)


def _size(one: BatchTrial) -> int:
    return one.batch


def doubling_trials(first: int, largest: int) -> int:
    """How many runs it takes to double until it fails, and then to halve the gap down to an eighth."""
    count, size = 0, first
    for size in _doubled(first):
        count += 1
        if size > largest:
            break
    gap = size // 2
    while gap > max(1, largest // 8):
        count, gap = count + 1, gap // 2
    return count


def _doubled(first: int) -> Iterator[int]:
    while True:
        yield first
        first *= 2
