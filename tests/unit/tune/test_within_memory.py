"""Room for a plan that takes too much: as little computed again as it needs."""

import dataclasses
import math
from typing import Any

import pytest

from flatout.levers.job import JobFacts
from flatout.records.plan import Choice
from flatout.records.tuning import Pace
from flatout.tune.pace import Measured
from flatout.tune.within_memory import make_room

GIB = 1 << 30
JOB = JobFacts(device="cuda:0", habits={"repeated_blocks": 12, "optimizers": [{"name": "AdamW"}]})
PACE = Pace(step_ms=100.0, peak_bytes=75 * GIB)
FREE = ("allocator", "linear-cross-entropy")
COMPILED = (Choice(id="bf16"), Choice(id="compile", settings={"mode": "default"}))


def measured(step_ms: float, gib: float) -> Measured:
    return Measured(dataclasses.replace(PACE, step_ms=step_ms, peak_bytes=round(gib * GIB)), None, "stopped")


def roomed(
    answers: dict[str, Any],
    chosen: tuple[Choice, ...] = (),
    job: JobFacts = JOB,
    skip: tuple[str, ...] = (),
    free: bool = False,
    deadline: float = math.inf,
) -> tuple[Any, list[str]]:
    asked: list[str] = []
    skip = skip if free else (*skip, *FREE)

    def measure(_what: str, levers: tuple[Choice, ...]) -> Measured:
        added = ", ".join(one.words() for one in levers if one.id not in {choice.id for choice in chosen})
        asked.append(added)
        return answers[added]

    now = Measured(PACE, None, "stopped")
    return make_room(chosen, now, 40 * GIB, job, skip.__contains__, measure, deadline), asked


def test_half_is_too_much_or_too_little_and_two_points_tell_how_much_is_needed() -> None:
    for gib, share, step_ms in ((25, 0.37, 108.0), (50, 0.73, 120.0)):
        room, asked = roomed(
            {
                "block-checkpointing (share=0.5)": measured(115.0, gib),
                f"block-checkpointing (share={share})": measured(step_ms, 39),
                "activation-offload (share=0.5)": measured(130.0, 39),
            }
        )
        assert [choice.words() for choice in room.chosen] == [f"block-checkpointing (share={share})"]
        assert asked[:2] == ["block-checkpointing (share=0.5)", f"block-checkpointing (share={share})"]
        kept = next(trial for trial in room.trials if trial.verdict == "kept")
        assert kept.measured_speedup == pytest.approx(100 / step_ms)


def test_when_the_time_is_over_the_first_that_fits_is_taken() -> None:
    room, asked = roomed(
        {
            "block-checkpointing (share=0.5)": measured(115.0, 50),
            "block-checkpointing (share=0.73)": measured(120.0, 39),
        },
        deadline=0.0,
    )
    assert [choice.words() for choice in room.chosen] == asked[-1:] == ["block-checkpointing (share=0.73)"]


def test_what_fits_just_so_is_not_measured_again() -> None:
    room, asked = roomed(
        {
            "block-checkpointing (share=0.5)": measured(115.0, 39),
            "activation-offload (share=0.5)": measured(150.0, 39),
        }
    )
    assert [choice.words() for choice in room.chosen] == ["block-checkpointing (share=0.5)"]
    assert [trial.verdict for trial in room.trials] == ["kept", "rejected"]
    assert asked == ["block-checkpointing (share=0.5)", "activation-offload (share=0.5)"]


def test_states_of_the_optimizer_go_where_nothing_else_helps() -> None:
    room, asked = roomed(
        {
            "block-checkpointing (share=0.5)": measured(115.0, 60),
            "activation-offload (share=0.5)": measured(150.0, 60),
            "optimizer-offload": measured(140.0, 39),
        }
    )
    assert [choice.words() for choice in room.chosen] == ["optimizer-offload"]
    assert len(asked) == 3  # by a straight line, not even all of the blocks would do


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
            "activation-offload (share=0.5)": measured(130.0, 75),
            "optimizer-offload": measured(130.0, 70),
        }
    )
    assert room.chosen == ()
    assert [trial.verdict for trial in room.trials] == ["failed", "rejected", "rejected", "rejected"]
    assert room.note == "nothing that was tried fits into 40.0 GiB"


def test_what_does_not_suit_or_is_to_be_skipped_is_not_tried() -> None:
    others = ("activation-offload", "optimizer-offload")
    assert roomed({}, skip=("block-checkpointing", *others))[1] == []
    assert roomed({}, job=JobFacts(device="cuda:0"), skip=others)[1] == []
    assert roomed({}, job=JobFacts())[1] == []


def test_what_costs_nothing_comes_first_and_stays_below_the_ways() -> None:
    job = dataclasses.replace(JOB, habits={**JOB.habits, "vocabulary": 32000})
    both = "allocator, linear-cross-entropy"
    room, asked = roomed(
        {
            both: measured(101.0, 60),
            f"{both}, block-checkpointing (share=0.5)": measured(115.0, 39),
            f"{both}, activation-offload (share=0.5)": measured(150.0, 39),
        },
        job=job,
        free=True,
    )
    assert asked[0] == both
    assert [choice.id for choice in room.chosen] == [*FREE, "block-checkpointing"]
    assert [(trial.lever, trial.verdict) for trial in room.trials] == [
        *((lever, "kept") for lever in FREE),
        ("block-checkpointing", "kept"),
        ("activation-offload", "rejected"),
    ]


def test_what_costs_nothing_may_be_enough() -> None:
    room, asked = roomed({"allocator": measured(100.0, 39)}, free=True)
    assert [choice.id for choice in room.chosen] == ["allocator"]
    assert room.note == "allocator makes it fit"
    assert asked == ["allocator"]


@pytest.mark.parametrize(
    "answer", [measured(110.0, 60), measured(100.0, 74.9), Measured(None, None, "failed")]
)
def test_what_costs_time_or_gives_nothing_is_left_out_of_the_ways(answer: Measured) -> None:
    room, _ = roomed(
        {
            "allocator": answer,
            "block-checkpointing (share=0.5)": measured(115.0, 39),
            "activation-offload (share=0.5)": measured(150.0, 39),
        },
        free=True,
    )
    assert [choice.id for choice in room.chosen] == ["block-checkpointing"]
    assert room.trials[0].verdict in ("rejected", "failed")


def test_where_nothing_fits_what_costs_nothing_goes_again() -> None:
    others = ("activation-offload", "optimizer-offload", "block-checkpointing")
    room, _ = roomed({"allocator": measured(100.0, 60)}, skip=others, free=True)
    assert room.chosen == ()
    assert [trial.verdict for trial in room.trials] == ["rejected"]


def test_an_allocator_that_the_environment_configures_is_left_alone() -> None:
    job = dataclasses.replace(JOB, habits={"allocator_settings": "max_split_size_mb:512"})
    assert roomed({}, job=job, skip=("activation-offload", "optimizer-offload"), free=True)[1] == []
