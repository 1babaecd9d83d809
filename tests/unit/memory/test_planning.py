"""What would make a job fit: cheap ways first, and an honest answer where nothing does."""

import dataclasses
from typing import Any

import pytest

from flatout.memory.allocator import MIB
from flatout.memory.planning import CONTEXT_BYTES, plan
from flatout.memory.replaying import replay
from flatout.memory.reworking import (
    activations_away,
    eight_bit_optimizer,
    micro_batches,
    sharded,
    split_products,
    states_away,
)
from flatout.memory.strategies import strategies
from flatout.records.ledger import LedgerFile
from flatout.records.plan import Choice


def ledger_of(*, activations: int = 4, products: tuple[str, ...] = ("float32",)) -> LedgerFile:
    """Parameters of 100 MiB with their gradients and states, and activations of 100 MiB each."""
    takes = [[1, 100 * MIB, 0], [2, 200 * MIB, 0]]
    step = [[10 + number, 100 * MIB, 1] for number in range(activations)]
    copy = [[90, 50 * MIB, 2]]
    back = [[event[0]] for event in (*step, *copy)]
    return LedgerFile(
        events=[*takes, *copy, *step, [3, 100 * MIB, 0], *back, [-1]],
        places=[("a.py", 1, "main", ""), ("a.py", 2, "f", "aten::mm"), ("a.py", 3, "f", "aten::_to_copy")],
        owners={"parameters": [1], "optimizer": [2], "gradients": [3]},
        updates=1,
        products=list(products),
    )


@dataclasses.dataclass(frozen=True)
class Given:
    id: str
    usable_bytes: int


def planned(budget: int, imagine: Any = lambda _levers: None, **job: Any) -> Any:
    return plan(ledger_of(**job), [Given("some", CONTEXT_BYTES + budget)], imagine, lambda _: 2.0)


def test_ledgers_are_worked_over() -> None:
    assert replay(ledger_of()).reserved_bytes == 850 * MIB
    assert replay(eight_bit_optimizer(ledger_of())).reserved_bytes == pytest.approx(702 * MIB, abs=MIB)
    # The copy of the weights is as large as ever.
    assert replay(micro_batches(ledger_of(), 4)).reserved_bytes == pytest.approx(552 * MIB, abs=4 * MIB)
    halved = replay(sharded(ledger_of(), 2))
    assert halved.reserved_bytes == (50 + 100 + 50 + 400 + 50 + 200) * MIB
    assert halved.parts.workspace == 200 * MIB
    # Activations are whole to 10 parts in 34.
    split = replay(split_products(ledger_of(), 2)).reserved_bytes
    assert split == pytest.approx((50 + 100 + 50 + 450 * (10 / 34 + 12 / 34)) * MIB, rel=0.02)


def steps_of(*, update: list[list[int]]) -> LedgerFile:
    """Two steps of a weight of 100 MiB, whose gradient goes as the second begins; activations of 400 MiB."""

    def step(number: int, gradient: int) -> list[list[int]]:
        activations, taken = [number, 400 * MIB, 1], [gradient, 100 * MIB, 1]
        numbered = [[event[0] + number, *event[1:]] if event[0] else event for event in update]
        return [activations, taken, [number], *numbered]

    return LedgerFile(
        events=[[1, 100 * MIB, 0], *step(10, 2), [-1], [2], *step(20, 3), [-2], [3]],
        places=[("a.py", 1, "main", ""), ("a.py", 2, "f", "aten::mm")],
        owners={"parameters": [1], "gradients": [2, 3]},
        updates=2,
    )


def test_what_an_update_takes_is_as_large_for_parts_of_a_batch() -> None:
    """And smaller where weights are shared out."""
    ledger = steps_of(update=[[0], [5, 300 * MIB, 1], [5]])
    assert replay(ledger).allocated_bytes == 600 * MIB
    assert replay(micro_batches(ledger, 4)).allocated_bytes == (100 + 100 + 300) * MIB
    assert replay(sharded(ledger, 2)).allocated_bytes == (200 + 50 + 400 + 50) * MIB
    assert replay(split_products(ledger, 2)).allocated_bytes < (50 + 50 + 400) * MIB
    away = dataclasses.replace(ledger, events=[event for event in ledger.events if event[0]])
    assert replay(micro_batches(away, 4)).allocated_bytes < 500 * MIB


def test_gradients_are_there_from_the_first_part_on_and_the_next_come_beside_them() -> None:
    parts = micro_batches(steps_of(update=[]), 4)
    assert replay(parts).allocated_bytes == (100 + 100 + 400 // 4 + 100) * MIB
    assert replay(parts).parts.gradients == 100 * MIB


def test_states_are_there_for_the_update_alone() -> None:
    away = replay(states_away(ledger_of()))
    assert away.allocated_bytes == (100 + 400 + 50 + 100) * MIB
    # Where there are few activations, the update sets the peak.
    assert replay(states_away(ledger_of(activations=1))).allocated_bytes == (100 + 100 + 200) * MIB


def test_what_is_saved_for_the_way_back_is_away_and_some_of_it_under_way() -> None:
    ledger = ledger_of(activations=60)
    assert replay(ledger).allocated_bytes > 6000 * MIB
    away = replay(activations_away(ledger))
    assert away.parts.workspace == 3 << 30
    assert away.allocated_bytes < (100 + 200 + 100 + 50 + 1200) * MIB + (3 << 30)


def test_what_levers_do_can_be_run() -> None:
    plans = {one.words: [choice.id for choice in one.plan] for one in strategies(ledger_of())}
    assert plans["optimizer states on the host"] == ["optimizer-offload"]
    assert plans["bf16, activations on the host"] == ["bf16", "activation-offload"]
    assert plans["8-bit optimizer"] == []


def test_levers_are_imagined_and_what_does_not_apply_alone_is_not_tried_beside_others() -> None:
    asked: list[tuple[str, ...]] = []

    def imagine(levers: tuple[Choice, ...]) -> LedgerFile | None:
        asked.append(tuple(choice.id for choice in levers))
        return ledger_of(activations=2) if levers[0].id == "bf16" and len(levers) == 1 else None

    found = planned(700 * MIB, imagine)
    fitting = [option.strategy for option in found.options if option.fits]
    assert fitting == [
        *("bf16", "2 micro-batches"),
        *("optimizer states on the host", "bf16, optimizer states on the host"),
    ]
    assert asked == [("bf16",), ("block-checkpointing",), ("block-checkpointing",)]
    assert found.least_bytes == CONTEXT_BYTES + 650 * MIB
    assert found.least_words == "bf16"


def test_parts_and_several_gpus_are_offered_to_a_job_without_blocks() -> None:
    """On top of whatever does apply, in as few parts and on as few GPUs as will do, imagined but once."""
    asked: list[tuple[str, ...]] = []

    def imagine(levers: tuple[Choice, ...]) -> LedgerFile | None:
        asked.append(tuple(choice.id for choice in levers))
        return ledger_of(activations=20) if asked[-1] == ("bf16",) else None

    found = planned(1000 * MIB, imagine, activations=40)
    fitting = [option.strategy for option in found.options if option.fits]
    assert fitting == ["bf16, 4 micro-batches", "bf16, tensor parallel over 8 GPUs"]
    assert asked == [("bf16",), ("block-checkpointing",), ("block-checkpointing",)]
    assert planned(1 * MIB, activations=40).least_words == "16 micro-batches"
    assert planned(1 * MIB, imagine, activations=40).least_words == "bf16, 16 micro-batches"


def test_blocks_computed_again_are_cut_into_parts_where_half_precision_does_not_apply() -> None:
    def imagine(levers: tuple[Choice, ...]) -> LedgerFile | None:
        return None if levers[0].id == "bf16" else ledger_of(activations=4)

    found = planned(660 * MIB, imagine, activations=70)
    assert "all blocks computed again, 4 micro-batches" in [one.strategy for one in found.options if one.fits]


def test_parts_of_a_batch_do_not_take_the_place_of_levers() -> None:
    """Which can be had without a line of code, also after a job ran out of memory."""
    found = planned(700 * MIB, lambda _levers: ledger_of(activations=1))
    levers = [option for option in found.options if option.fits and option.levers]
    assert sum("micro-batches" in option.strategy for option in found.options if option.fits) == 1
    assert len(levers) == 3


def test_the_least_costly_come_first_and_a_few_are_enough() -> None:
    found = planned(500 * MIB, lambda levers: ledger_of(activations=0 if len(levers) > 1 else 1))
    fitting = [option for option in found.options if option.fits]
    costs = [option.predicted_slowdown for option in fitting]
    assert [option.strategy for option in fitting if "micro-batches" in option.strategy] == [
        "bf16, 4 micro-batches"
    ]
    assert len(fitting) == 3 + 1
    assert costs == sorted(costs)
    assert all(option.peak_bytes <= CONTEXT_BYTES + 500 * MIB for option in fitting)


def test_where_nothing_fits_the_least_is_told() -> None:
    found = planned(1 * MIB, lambda _levers: ledger_of(activations=1))
    assert not any(option.fits for option in found.options)
    assert CONTEXT_BYTES < found.least_bytes < CONTEXT_BYTES + 850 * MIB


def test_several_gpus_cost_several_times_as_much() -> None:
    found = planned(300 * MIB, lambda _levers: ledger_of(activations=1))
    together = [option for option in found.options if option.gpus > 1]
    assert together
    assert all(option.usd_per_hour == 2.0 * option.gpus for option in together)


def test_half_precision_is_not_offered_to_what_has_it() -> None:
    words = [one.words for one in strategies(ledger_of(products=("bfloat16", "float32")))]
    assert not any("bf16" in one for one in words)
    assert words.index("half of the blocks computed again") < words.index("all blocks computed again")
