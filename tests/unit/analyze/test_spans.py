"""Spans of time combine as sets of instants do."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flatout.analyze.trace.spans import Spans, both, gaps, merged, total, within, without

PAIRS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=12)


def spans(pairs: list[tuple[int, int]]) -> Spans:
    starts = np.array([start for start, _ in pairs], np.int64)
    return merged(starts, starts + np.array([length for _, length in pairs], np.int64))


def instants(found: Spans) -> set[int]:
    return {instant for start, end in zip(*found, strict=True) for instant in range(start, end)}


def are_apart(found: Spans) -> bool:
    return bool(np.all(found[0] < found[1]) and np.all(found[1][:-1] <= found[0][1:]))


@given(PAIRS)
def test_merged(pairs: list[tuple[int, int]]) -> None:
    found = spans(pairs)
    assert instants(found) == {i for start, length in pairs for i in range(start, start + length)}
    assert np.all(found[1][:-1] < found[0][1:])
    assert total(found) == len(instants(found))


@given(PAIRS, PAIRS)
def test_both_and_without(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    a, b = spans(one), spans(other)
    assert instants(both(a, b)) == instants(a) & instants(b)
    assert instants(without(a, b)) == instants(a) - instants(b)
    assert are_apart(both(a, b))
    assert are_apart(without(a, b))


@given(PAIRS, st.integers(0, 40), st.integers(0, 40))
def test_within_and_gaps(pairs: list[tuple[int, int]], start: int, length: int) -> None:
    found, window = spans(pairs), set(range(start, start + length))
    assert instants(within(found, start, start + length)) == instants(found) & window
    assert instants(gaps(found, start, start + length)) == window - instants(found)
