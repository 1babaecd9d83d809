"""Sets of time spans, as columns of starts and ends: sorted, apart from each other, quick to combine."""

from collections.abc import Iterable
from typing import Any

import numpy as np

Spans = tuple[Any, Any]

NOTHING: Spans = (np.empty(0, np.int64), np.empty(0, np.int64))


def merged(starts: Any, ends: Any) -> Spans:
    """The same time, in spans that neither touch nor overlap."""
    if not len(starts):
        return NOTHING
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    new = np.empty(len(starts), bool)
    new[0] = True
    np.greater(starts[1:], ends[:-1], out=new[1:])
    first = np.flatnonzero(new)
    last = np.append(first[1:] - 1, len(starts) - 1)
    found = starts[first], ends[last]
    some = found[1] > found[0]
    return found[0][some], found[1][some]


def total(spans: Spans) -> int:
    """How long they are together."""
    return int((spans[1] - spans[0]).sum())


def within(spans: Spans, start: int, end: int) -> Spans:
    """What lies in a window."""
    starts, ends = np.clip(spans[0], start, end), np.clip(spans[1], start, end)
    some = ends > starts
    return starts[some], ends[some]


def without(spans: Spans, taken: Spans) -> Spans:
    """What is left of them when others are taken away."""
    return both(spans, _outside(taken))


def both(one: Spans, other: Spans) -> Spans:
    """The time that is in both."""
    if not len(one[0]) or not len(other[0]):
        return NOTHING
    # Every pair that overlaps: for each span of one, a run of spans of the other.
    first = np.searchsorted(other[1], one[0], side="right")
    last = np.searchsorted(other[0], one[1], side="left")
    counts = np.maximum(last - first, 0)
    mine = np.repeat(np.arange(len(counts)), counts)
    before: Any = np.cumsum(counts) - counts
    theirs = np.repeat(first - before, counts) + np.arange(len(mine))
    starts = np.maximum(one[0][mine], other[0][theirs])
    ends = np.minimum(one[1][mine], other[1][theirs])
    some = ends > starts
    return starts[some], ends[some]


def divided(parts: Iterable[tuple[str, Spans]], start: int, end: int) -> tuple[dict[str, Spans], Spans]:
    """A window's time, each instant given to the first part that has it; and what is left over."""
    found: dict[str, Spans] = {}
    taken = NOTHING
    for name, spans in parts:
        inside = within(spans, start, end)
        found[name] = without(inside, taken)
        taken = merged(np.concatenate((taken[0], inside[0])), np.concatenate((taken[1], inside[1])))
    return found, gaps(taken, start, end)


def gaps(spans: Spans, start: int, end: int) -> Spans:
    """The time of a window that is in none of them."""
    return within(_outside(within(spans, start, end)), start, end)


def _outside(spans: Spans) -> Spans:
    least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    return np.concatenate(([least], spans[1])), np.concatenate((spans[0], [most]))
