"""Over several GPUs: what each holds, what moves, and which way is chosen."""

from typing import Any

import pytest

from flatout.memory.allocator import MIB
from flatout.memory.planning import CONTEXT_BYTES
from flatout.memory.spreading import Link, spread
from flatout.records.fit import SpreadOption
from tests.unit.memory.test_planning import Given, ledger_of


def ways(room: int, *, link: float | None = 1e9, step_s: float | None = 1.0, gpus: int = 4) -> dict[str, Any]:
    budget = Given("some", CONTEXT_BYTES + room)
    found = spread(ledger_of(), budget, gpus, Link(link, "given"), step_s, 2.0)
    return {option.strategy: option for option in found}


def chosen(found: dict[str, SpreadOption]) -> list[str]:
    return [option.strategy for option in found.values() if option.is_chosen]


def test_what_moves_is_what_rings_move() -> None:
    found = ways(1000 * MIB)
    # Gradients of 100 MiB: all but its own quarter, twice. Weights to everybody twice, gradients once.
    assert found["ddp"].moved_bytes == 150 * MIB
    assert found["fsdp"].moved_bytes == 225 * MIB
    assert found["ddp"].moving_s == pytest.approx(150 * MIB / 1e9)
    assert found["pipeline"].idle_share == pytest.approx(3 / 19)


def test_where_all_fits_the_batch_is_split_and_nothing_else() -> None:
    found = ways(1000 * MIB)
    assert chosen(found) == ["ddp"]
    assert next(iter(found)) == "ddp"
    ddp = found["ddp"]
    assert ddp.predicted_speedup_low == pytest.approx(4 / (1 + 150 * MIB / 1e9))
    assert ddp.predicted_speedup_high == 4
    assert ddp.usd_per_hour == 8.0


def test_where_it_does_not_fit_the_least_that_moves_among_what_does_is_chosen() -> None:
    found = ways(800 * MIB)
    assert found["ddp"].fits is False
    assert found["fsdp"].fits is True
    assert (
        chosen(found) == ["fsdp"] if found["fsdp"].moved_bytes < found["tensor"].moved_bytes else ["tensor"]
    )
    assert chosen(ways(10 * MIB)) == []


def test_without_a_link_or_a_steps_time_nothing_is_made_up() -> None:
    found = ways(1000 * MIB, link=None)["ddp"]
    assert (found.moving_s, found.predicted_speedup_low) == (None, None)
    assert "--link" in found.unknown["moving_s"]
    found = ways(1000 * MIB, step_s=None)["ddp"]
    assert found.moving_s is not None
    assert "--step-ms" in found.unknown["predicted_speedup_low"]
