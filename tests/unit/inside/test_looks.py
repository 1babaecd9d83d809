"""Looks at memory: few in the long run, and what they seem to say."""

import itertools
import time
from collections import Counter

import pytest

from flatout.inside.looks import Looks, is_looked_at, rise


def test_a_long_loop_is_looked_at_less_and_less() -> None:
    looks = Looks(most=64)
    for step in range(1, 10_001):
        if not step % looks.every:
            looks.look(step, lambda step=step: 100 * step)  # type: ignore[misc]
    assert 32 <= len(looks.points) < 64
    steps = [step for step, _ in looks.points]
    assert {later - earlier for earlier, later in itertools.pairwise(steps)} == {looks.every}
    assert rise(looks.points) == 100


def test_looks_that_take_long_become_fewer_but_never_too_few() -> None:
    looks = Looks()

    def slow() -> int:
        time.sleep(0.002)
        return 1

    for step in range(1, 2001):
        if not step % looks.every:
            looks.look(step, slow)
    assert looks.every >= 16
    assert len(looks.points) >= 16


def test_what_is_not_known_is_no_point() -> None:
    looks = Looks()
    looks.look(1, lambda: None)
    assert looks.points == []


def test_a_rise_is_from_earlier_to_later_looks_after_the_first_third() -> None:
    assert rise([(step, 10 * step) for step in range(30)]) == 10
    assert rise([(step, 1000 if step < 10 else 2000) for step in range(30)]) == 0
    assert rise([(1, 5), (2, 10), (3, 15)]) == 0


def test_looks_fall_into_step_with_no_period_of_a_script() -> None:
    seen = [step for step in range(1, 32_001) if is_looked_at(step)]
    assert len(seen) == pytest.approx(1000, rel=0.02)
    gaps = {later - earlier for earlier, later in itertools.pairwise(seen)}
    assert max(gaps) < 100
    for period in (2, 3, 4, 5, 8, 10, 16, 32, 50, 100):
        places = Counter(step % period for step in seen)
        assert len(places) == period
        assert max(places.values()) < 1.7 * len(seen) / period
