"""What tuning says at the end."""

import pytest

from flatout.records.tuning import Rung
from flatout.tune.result import capped


def test_a_ladder_goes_no_further_than_the_loader_lets_it() -> None:
    ladder = [
        Rung(lever="loader", step_ms=50.0, gain=2.0, speedup=2.0),
        Rung(lever="bf16", step_ms=25.0, gain=2.0, speedup=4.0),
        Rung(lever="compile", step_ms=12.5, gain=2.0, speedup=8.0),
    ]
    limited = capped(ladder, 3.0)
    assert [rung.speedup for rung in limited] == [2.0, 3.0, 3.0]
    assert [rung.gain for rung in limited] == [2.0, 1.5, 1.0]
    assert [rung.step_ms for rung in limited] == pytest.approx([50.0, 100 / 3, 100 / 3])
    assert capped(ladder, 9.0) == tuple(ladder)
