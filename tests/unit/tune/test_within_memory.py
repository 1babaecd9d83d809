"""Room for a plan that takes too much: as little computed again as it needs."""

import dataclasses
from typing import Any

import pytest

from flatout.levers.job import JobFacts
from flatout.records.plan import Choice
from flatout.records.tuning import Pace
from flatout.tune.pace import Measured
from flatout.tune.within_memory import make_room

GIB = 1 << 30
JOB = JobFacts(device="cuda:0", habits={"repeated_blocks": 12})
PACE = Pace(step_ms=100.0, peak_bytes=75 * GIB)
COMPILED = (Choice(id="bf16"), Choice(id="compile", settings={"mode": "default"}))


def measured(step_ms: float, gib: float) -> Measured:
    return Measured(dataclasses.replace(PACE, step_ms=step_ms, peak_bytes=round(gib * GIB)), None, "stopped")


def roomed(
    answers: dict[str, Any], chosen: tuple[Choice, ...] = (), job: JobFacts = JOB, skip: tuple[str, ...] = ()
) -> tuple[Any, list[str]]:
    asked: list[str] = []

    def measure(_what: str, levers: tuple[Choice, ...]) -> Measured:
        [added] = [one for one in levers if one.id not in {choice.id for choice in chosen}]
        asked.append(added.words())
        return answers[added.words()]

    now = Measured(PACE, None, "stopped")
    return make_room(chosen, now, 40 * GIB, job, skip, measure), asked


def test_the_least_that_fits_is_taken() -> None:
    room, asked = roomed(
        {
            "block-checkpointing (share=0.5)": measured(115.0, 39),
            "block-checkpointing (share=1.0)": measured(130.0, 20),
        }
    )
    assert [choice.words() for choice in room.chosen] == ["block-checkpointing (share=0.5)"]
    assert [trial.verdict for trial in room.trials] == ["kept", "rejected"]
    assert room.trials[0].measured_speedup == pytest.approx(100 / 115)
    assert len(asked) == 2


def test_what_is_still_too_much_is_not_taken_and_of_two_that_fit_the_faster() -> None:
    room, asked = roomed(
        {
            "activation-budget (budget=0.5)": measured(104.0, 50),
            "activation-budget (budget=0.2)": measured(125.0, 39),
            "block-checkpointing (share=0.5)": measured(112.0, 38),
        },
        COMPILED,
    )
    assert asked == [
        "activation-budget (budget=0.5)",
        "activation-budget (budget=0.2)",
        "block-checkpointing (share=0.5)",
    ]
    assert {choice.id for choice in room.chosen} == {"bf16", "compile", "block-checkpointing"}
    assert [trial.verdict for trial in room.trials] == ["rejected", "rejected", "kept"]


def test_where_nothing_helps_the_plan_stays_as_it_was() -> None:
    failed = Measured(None, None, "failed")
    room, _ = roomed(
        {
            "block-checkpointing (share=0.5)": failed,
            "block-checkpointing (share=1.0)": measured(130.0, 60),
        }
    )
    assert room.chosen == ()
    assert [trial.verdict for trial in room.trials] == ["failed", "rejected"]
    assert room.note == ""


def test_what_does_not_suit_or_is_to_be_skipped_is_not_tried() -> None:
    assert roomed({}, skip=("block-checkpointing",))[1] == []
    assert roomed({}, job=JobFacts(device="cuda:0"))[1] == []
