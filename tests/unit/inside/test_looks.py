"""Looks at memory: few in the long run, and what they seem to say."""

import itertools
import time

from flatout.inside.looks import Looks, rise


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
