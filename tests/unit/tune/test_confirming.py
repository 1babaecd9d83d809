"""A plan counts in a process of its own; one slow run among others on a busy machine is no verdict."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from flatout.records.plan import Choice
from flatout.records.tuning import Pace
from flatout.tune.confirming import confirm
from flatout.tune.pace import Measured, pace_of
from tests.profiles import profile

PLAN = (Choice(id="bf16"), Choice(id="compile", settings={"mode": "reduce-overhead"}))
PACE = pace_of(profile())


def at(rate: float | None, peak_bytes: int = 10) -> Pace | None:
    if rate is None:
        return None
    return dataclasses.replace(PACE, samples_per_s=rate, step_ms=1000 / rate, peak_bytes=peak_bytes)


class Runs:
    """Runs of which the outcome is known, in their order."""

    def __init__(self, *paces: Pace | None, goal: str = "throughput", most_bytes: int | None = None) -> None:
        self.paces, self.asked = list(paces), []  # type: ignore[var-annotated]
        self.request = SimpleNamespace(goal=goal, max_memory_bytes=most_bytes)
        self._most_bytes = most_bytes

    def measure(self, what: str, levers: tuple[Choice, ...], _as_written: Pace) -> Measured:
        self.asked.append((what, levers))
        if not self.paces:
            raise KeyboardInterrupt
        return Measured(self.paces.pop(0), None, "the job failed: OSError: no handle")

    def is_too_large(self, pace: Pace) -> bool:
        return self._most_bytes is not None and (pace.peak_bytes or 0) > self._most_bytes


def confirmed(
    runs: Any, as_written: Pace | None = at(100.0), known: Measured | None = None, plan: Any = PLAN
) -> Any:
    return confirm(runs, plan, as_written, known)  # type: ignore[arg-type]


def test_a_plan_that_is_faster_is_measured_once() -> None:
    runs = Runs(at(180.0))
    found = confirmed(runs)
    assert (found.chosen, found.pace.samples_per_s, found.notes) == (PLAN, 180.0, ())
    assert len(runs.asked) == 1


def test_what_is_known_is_not_measured_again() -> None:
    runs = Runs()
    assert confirmed(runs, known=Measured(at(180.0), None, "stopped")).chosen == PLAN
    assert not runs.asked


@pytest.mark.parametrize(
    ("runs", "rate", "note"),
    [
        # The machine has become slower since the baseline, for both.
        ((at(90.0), at(50.0)), 90.0, "became slower"),
        # The plan's run was disturbed, the baseline's was not; the next one of the plan is not either.
        ((at(90.0), at(100.0), at(180.0)), 180.0, "slowed some of the runs"),
    ],
)
def test_a_disturbed_run_does_not_cost_the_plan(runs: tuple[Any, ...], rate: float, note: str) -> None:
    found = confirmed(Runs(*runs))
    assert found.chosen == PLAN
    assert found.pace.samples_per_s == rate
    assert note in found.notes[0]
    # What it is held against is what was measured beside it: a plan is never told to be slower.
    assert found.as_written is not None
    assert found.pace.samples_per_s > found.as_written.samples_per_s


def test_a_plan_that_is_never_faster_is_none() -> None:
    runs = Runs(at(90.0), at(101.0), at(99.0))
    found = confirmed(runs)
    assert (found.chosen, found.pace) == ((), None)
    assert "no faster" in found.notes[0]
    assert [what for what, _ in runs.asked] == [
        "confirming the plan",
        "as written, once more",
        "the plan, once more",
    ]


LOADER = (Choice(id="loader", settings={"num_workers": 2}),)


def test_a_little_that_only_single_runs_show_is_held_against_the_job_once_more() -> None:
    """Settings of a loader take no turns: ten percent between two runs may be what else ran meanwhile."""
    steady = Runs(at(100.0), at(109.0))
    found = confirmed(steady, known=Measured(at(110.0), None, "stopped"), plan=LOADER)
    assert (found.chosen, found.as_written.samples_per_s, found.notes) == (LOADER, 100.0, ())
    assert [what for what, _ in steady.asked] == ["as written, once more", "the plan, once more"]
    # The machine was slow once, and the plan has not been faster than the job was before.
    for later in ((at(96.0), at(98.0)), (at(90.0), at(97.0))):
        assert confirmed(Runs(*later), known=Measured(at(98.0), None, "stopped"), plan=LOADER).chosen == ()
    # The job as written is now as fast as the plan was: so is the plan, no faster.
    quieter = Runs(at(110.0), at(108.0))
    assert confirmed(quieter, known=Measured(at(110.0), None, "stopped"), plan=LOADER).chosen == ()
    # Clear gains, and those of levers that took turns, need no more runs.
    for known, plan in ((at(130.0), LOADER), (at(110.0), (*LOADER, *PLAN))):
        assert confirmed(Runs(), known=Measured(known, None, "stopped"), plan=plan).chosen == plan


def test_a_run_that_fails_leaves_no_plan() -> None:
    found = confirmed(Runs(None))
    assert found.chosen == ()
    assert found.notes == (
        "the plan could not be confirmed: under the plan the job failed: OSError: no handle",
    )
    assert found.why == "under the plan the job failed: OSError: no handle"


def test_what_takes_too_much_memory_goes_lever_by_lever() -> None:
    runs = Runs(at(200.0, 99), at(150.0, 99), at(120.0, 10), most_bytes=50)
    found = confirmed(runs)
    assert found.chosen == (Choice(id="bf16"),)
    assert [levers[1:] for _, levers in runs.asked] == [
        PLAN[1:],
        (Choice(id="compile", settings={"mode": "default"}),),
        (),
    ]
    assert len(found.notes) == 2


def test_a_plan_that_fits_is_worth_its_time() -> None:
    slower = at(50.0, 10)
    assert confirmed(Runs(slower, most_bytes=50), as_written=at(100.0, 99)).chosen == PLAN
    assert confirmed(Runs(slower, goal="memory")).chosen == PLAN


def test_ctrl_c_before_any_run_leaves_the_plan_to_what_it_gave_by_turns() -> None:
    found = confirmed(Runs())
    assert (found.chosen, found.pace, found.interrupted) == (PLAN, None, True)
    assert "before the plan ran" in found.notes[0]


def test_ctrl_c_does_not_keep_a_plan_of_which_it_is_not_known_that_it_fits() -> None:
    for runs in (Runs(most_bytes=50), Runs(goal="memory"), Runs(at(200.0, 99), most_bytes=50)):
        found = confirmed(runs)
        assert (found.chosen, found.interrupted) == ((), True)
        assert "how much memory" in found.notes[-1]


def test_ctrl_c_does_not_keep_a_plan_that_was_seen_to_be_slower() -> None:
    found = confirmed(Runs(at(70.0)))
    assert (found.chosen, found.interrupted) == ((), True)
    assert "not clearly better" in found.notes[-1]
