"""What tuning says at the end."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from flatout.records.plan import Choice
from flatout.records.tuning import GuardEvidence, LeverTrial, Pace, Rung
from flatout.runtime.command import JobCommand
from flatout.runtime.profiling import ProfileRequest
from flatout.tune.confirming import NOT_CONFIRMED
from flatout.tune.request import TuneRequest
from flatout.tune.result import Stages, _best, _gain_of_the_loader, _summary, capped, result_of
from tests.profiles import profile


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


def stages(loader: Choice | None, ladder: list[Rung], **changes: Any) -> Stages:
    return Stages(
        **{
            "baseline": profile(),
            "as_written": Pace(step_ms=185.0),
            "about": {},
            "chosen": (*((loader,) if loader else ()), Choice(id="bf16")),
            "input_wait": 0.0,
            "repeated": True,
            "confirmed": Pace(step_ms=62.0),
            "with_batch": None,
            "guard": GuardEvidence(verdict="same", paired=True, reason=""),
            "ladder": ladder,
            "trials": (),
            "compile_s": 0.0,
            "took_s": 1.0,
            "spent_s": {},
            "notes": (),
            **changes,
        }
    )


def test_with_repeated_batches_the_loader_gives_what_the_levers_could_not() -> None:
    """As written the job takes 185 ms, 121 of them without the loader; the levers bring those to 41."""
    loader = Choice(id="loader", settings={"num_workers": 14}, measured_speedup=2.3)
    rung = Rung(lever="bf16", step_ms=41.0, gain=121 / 41, speedup=121 / 41)
    assert _gain_of_the_loader(stages(loader, [rung]), slowest_ms=0.0) == pytest.approx(185 / 121)
    # A loader that cannot keep up with the job as written gives no more than it can.
    assert _gain_of_the_loader(stages(loader, [rung]), slowest_ms=150.0) == pytest.approx(185 / 150)
    assert _gain_of_the_loader(stages(None, [rung]), slowest_ms=0.0) is None
    # Where the loader's own batches came, its settings were measured on the job as written.
    assert _gain_of_the_loader(stages(loader, [rung], repeated=False), slowest_ms=0.0) == 2.3


def test_a_plan_that_still_waits_goes_as_fast_as_its_own_run_went() -> None:
    loader = Choice(id="loader", settings={"num_workers": 14}, measured_speedup=2.3)
    rung = Rung(lever="bf16", step_ms=41.0, gain=121 / 41, speedup=121 / 41)
    notes: list[str] = []
    best, speedup, ladder = _best(stages(loader, [rung], input_wait=0.3), notes)
    assert speedup == pytest.approx(185 / 62)
    assert best.step_ms == pytest.approx(62.0)
    assert [round(one.gain, 2) for one in ladder] == [round(185 / 121, 2), round(121 / 62, 2)]
    assert "waits for data" in notes[0]


def test_what_is_fast_and_refused_is_not_called_nothing() -> None:
    refused = LeverTrial(lever="bf16", safety="numeric", verdict="unsafe", reason="no", measured_speedup=1.69)
    request: Any = SimpleNamespace(max_memory_bytes=None, goal="throughput")
    nothing = stages(None, [], chosen=(), confirmed=None, trials=(refused,))
    said = _summary(request, nothing, Pace(step_ms=1.0), 1.0)
    assert said == "nothing that the guard lets pass: bf16 1.69x, but not learning the same"


def test_a_limit_that_nothing_keeps_is_the_answer() -> None:
    request: Any = SimpleNamespace(max_memory_bytes=10 << 20)
    nothing = stages(None, [], chosen=(), confirmed=None, trials=())
    nothing = dataclasses.replace(nothing, as_written=Pace(step_ms=1.0, peak_bytes=351 << 20))
    said = _summary(request, nothing, Pace(step_ms=1.0), 1.0)
    assert said.startswith("nothing within 10 MiB: as written it takes 351 MiB")


def test_levers_that_somebody_left_out_are_counted() -> None:
    request: Any = SimpleNamespace(max_memory_bytes=None, goal="throughput")
    trials = [
        LeverTrial(lever=name, safety="numeric", verdict="skipped", reason=reason)
        for name, reason in (
            ("tf32", "left out by --only"),
            ("bf16", "left out by --only"),
            ("loader", "none"),
        )
    ]
    nothing = stages(None, [], chosen=(), confirmed=None, trials=tuple(trials))
    said = _summary(request, nothing, Pace(step_ms=1.0), 1.0)
    assert said == "nothing to gain: no lever applies (loader: none; 2 left out by --only or --skip)"


def test_a_job_that_is_too_short_is_told_so_whatever_its_loader_showed() -> None:
    request: Any = SimpleNamespace(max_memory_bytes=None, goal="throughput")
    short = "the job ends after 2 updates: too few to compare"
    trials = (
        LeverTrial(lever="loader", safety="exact", verdict="rejected", reason="no setting is faster"),
        LeverTrial(lever="bf16", safety="numeric", verdict="failed", reason=short),
    )
    nothing = stages(None, [], chosen=(), confirmed=None, trials=trials)
    assert _summary(request, nothing, Pace(step_ms=1.0), 1.0) == f"nothing could be tried: {short}"


@pytest.mark.parametrize(
    ("speedup", "low", "high", "said"),
    [
        (1.35, 0.427, 4.262, "nothing is certain: bf16 1.35x could be chance"),
        (1.004, 0.99, 1.01, "nothing to gain"),
        (0.8, 0.3, 2.0, "nothing to gain"),
    ],
)
def test_what_could_not_be_told_is_not_called_nothing(
    speedup: float, low: float, high: float, said: str
) -> None:
    reason = "could be chance"
    figures = {"measured_speedup": speedup, "low": low, "high": high}
    trial = LeverTrial(lever="bf16", safety="numeric", verdict="rejected", reason=reason, **figures)
    nothing = stages(None, [], chosen=(), confirmed=None, trials=(trial,))
    request: Any = SimpleNamespace(max_memory_bytes=None, goal="throughput")
    assert _summary(request, nothing, Pace(step_ms=1.0), 1.0).startswith(said)


def test_what_was_not_confirmed_is_not_called_no_faster() -> None:
    trial = LeverTrial(
        lever="bf16", safety="numeric", verdict="rejected", reason=NOT_CONFIRMED, measured_speedup=1.26
    )
    nothing = stages(None, [], chosen=(), confirmed=None, trials=(trial,))
    request: Any = SimpleNamespace(max_memory_bytes=None, goal="throughput")
    said = _summary(request, nothing, Pace(step_ms=1.0), 1.0)
    assert said.startswith("nothing is certain: bf16 1.26x by turns, not confirmed in a process of its own")


def test_where_memory_is_the_goal_nothing_is_said_of_speed() -> None:
    trial = LeverTrial(
        lever="bf16", safety="numeric", verdict="rejected", reason="428 MiB -> 516 MiB: no less"
    )
    nothing = stages(None, [], chosen=(), confirmed=None, trials=(trial,))
    request: Any = SimpleNamespace(max_memory_bytes=None, goal="memory")
    said = _summary(request, nothing, Pace(step_ms=1.0), 1.0)
    assert said == "nothing to gain: 1 lever was tried, which made it take no less memory"


@pytest.mark.parametrize(("job_steps", "told"), [(None, False), (1_000_000, False), (10, True)])
def test_tuning_that_one_run_does_not_pay_back_is_told(job_steps: int | None, told: bool) -> None:
    choice = Choice(id="bf16", measured_speedup=2.0)
    rung = Rung(lever="bf16", step_ms=60.0, gain=2.0, speedup=2.0)
    command = JobCommand(("python", "t.py"), own_python=True, given=("t.py",))
    request = TuneRequest(job=ProfileRequest(command=command))
    found = result_of(request, "run", stages(None, [rung], chosen=(choice,), job_steps=job_steps))
    assert found.tuning.break_even_steps is not None
    assert any("is paid back after" in note for note in found.tuning.notes) == told
