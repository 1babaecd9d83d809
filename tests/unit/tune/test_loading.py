"""When the DataLoader's settings are tried: once, under the levers that were found, while the loop waits."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from flatout.levers.job import JobFacts
from flatout.records.plan import Choice
from flatout.records.profile import LoaderUse, Profile
from flatout.records.step import Share
from flatout.records.tuning import LeverTrial, Rung
from flatout.runtime.command import JobCommand
from flatout.runtime.profiling import ProfileRequest
from flatout.tune import loading
from flatout.tune.limits import Limits
from flatout.tune.loading import NOT_NEEDED, Loaded, LoaderStage
from flatout.tune.pace import Measured, pace_of
from tests.profiles import profile

BF16, PREFETCH = Choice(id="bf16"), Choice(id="device-prefetch")
WORKERS = Choice(id="loader", settings={"num_workers": 12})


@contextlib.contextmanager
def stage(_name: str) -> Iterator[None]:
    yield


def waiting(share: float, workers: int = 0) -> Profile:
    settings = {"batch_size": 64, "num_workers": workers}
    loader = LoaderUse(
        data_set="Images", settings=settings, batches=50, wait_ms=60.0, load_ms=60.0, collate_ms=3.0
    )
    parts = (Share(part="input_wait", ms=100 * share, share=share),)
    return profile(loaders=(loader,), waterfall=parts)


def facts(share: float, workers: int = 0) -> JobFacts:
    loaders = ({"num_workers": workers},)
    return JobFacts(device="cuda:0", loaders=loaders, host_shares={"input_wait": share})


class Stage(LoaderStage):
    """Sweeps of which the outcome is known."""

    def __init__(
        self, share: float, *, under_the_plan: float = 0.0, finds: Choice | None = WORKERS, **limits: Any
    ) -> None:
        self.measured: list[tuple[Choice, ...]] = []
        self.swept: list[tuple[tuple[Choice, ...], float | None]] = []
        self.finds = finds
        plan = waiting(under_the_plan)

        def measure(_what: str, levers: tuple[Choice, ...], _as_written: Any) -> Measured:
            self.measured.append(levers)
            return Measured(pace_of(plan), plan, "stopped")

        measurer: Any = SimpleNamespace(measure=measure, request=SimpleNamespace(goal="throughput"))
        super().__init__(measurer, Limits(**limits), Path(), waiting(share), stage)

    def tune(
        self,
        job: JobFacts,
        profile: Profile,
        levers: tuple[Choice, ...],
        *,
        computing_ms: float | None = None,
    ) -> Loaded:
        self.swept.append((levers, computing_ms))
        verdict: Any = "kept" if self.finds else "rejected"
        return Loaded(LeverTrial(lever="loader", safety="resampled", verdict=verdict, reason=""), self.finds)


def finder(*best: Choice) -> Any:
    rungs = [Rung(lever=one.words(), step_ms=40.0, gain=2.0, speedup=2.0) for one in best]
    return SimpleNamespace(best=best, ladder=rungs)


@pytest.fixture(autouse=True)
def _sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "workers_needed", lambda *_args, **_more: [6, 12])


def test_without_workers_as_many_are_reckoned_as_levers_need_to_be_tried() -> None:
    job = Stage(0.6)
    reckoned = job.reckon(facts(0.6))
    assert reckoned.choice is not None
    assert reckoned.choice.settings == {"num_workers": 12, "persistent_workers": True}
    assert not job.swept
    assert job.reckon(facts(0.6, workers=4)).choice is None
    assert job.reckon(facts(0.01)).choice is None
    assert Stage(0.6, skip=frozenset({"loader"})).reckon(facts(0.6)).choice is None


def test_a_loop_that_waits_long_is_swept_once_under_the_levers() -> None:
    job = Stage(0.6)
    reckoned = job.reckon(facts(0.6))
    loaded, found, _ = job.on_top(facts(0.6), finder(BF16), reckoned, later_on=True)
    assert job.swept == [((BF16,), 40.0)]
    assert not job.measured
    assert loaded.trial.verdict == "kept"
    assert found == (WORKERS, BF16)


def test_what_needs_workers_goes_where_none_are_worth_having() -> None:
    job = Stage(0.6, finds=None)
    reckoned = job.reckon(facts(0.6))
    _, found, _ = job.on_top(facts(0.6), finder(PREFETCH, BF16), reckoned, later_on=True)
    assert found == (BF16,)


@pytest.mark.parametrize(("under_the_plan", "swept"), [(0.01, False), (0.1, True)])
def test_a_loop_that_waited_little_is_looked_at_under_the_plan(under_the_plan: float, swept: bool) -> None:
    job = Stage(0.05, under_the_plan=under_the_plan)
    nothing = Loaded(NOT_NEEDED)
    _, found, measured = job.on_top(facts(0.05, workers=4), finder(BF16), nothing, later_on=True)
    assert job.measured == [(BF16,)]
    assert bool(job.swept) == swept
    assert found == ((WORKERS, BF16) if swept else (BF16,))
    assert (measured is None) == swept


def test_settings_that_were_found_first_stay() -> None:
    job = Stage(0.6)
    known = Loaded(NOT_NEEDED, WORKERS)
    assert job.on_top(facts(0.6), finder(BF16), known, later_on=False)[1] == (WORKERS, BF16)
    assert not job.swept
    assert not job.measured


def test_what_was_tried_in_vain_is_not_called_untried() -> None:
    job = Stage(0.6, under_the_plan=0.6, deadline=0.0)
    tried = Loaded(msgspec.structs.replace(NOT_NEEDED, verdict="rejected", reason="no setting is faster"))
    loaded, found, _ = job.on_top(facts(0.6), finder(BF16), tried, later_on=False)
    assert loaded is tried
    assert found == (BF16,)
    assert not job.swept


@pytest.mark.parametrize(
    ("now", "kept", "speedup"), [(100.0, True, 4.0), (399.0, False, 400 / 399), (250.0, True, 1.6)]
)
def test_more_than_the_loop_had_waited_is_held_against_the_job_as_it_is_now(
    monkeypatch: pytest.MonkeyPatch, now: float, kept: bool, speedup: float
) -> None:
    """A tenth of a step waited for data, and workers seem to make it four times as fast."""
    best = {"num_workers": 2}
    rows = [
        SimpleNamespace(settings={}, samples_per_s=100.0),
        SimpleNamespace(settings=best, samples_per_s=400.0),
    ]
    swept = SimpleNamespace(best=best, reason="2 workers", rows=rows)
    monkeypatch.setattr(loading, "sweep_loader", lambda *_args: SimpleNamespace(loader_sweep=swept))
    job = Stage(0.1)
    again = dataclasses.replace(pace_of(waiting(0.1)), samples_per_s=now)
    measurer: Any = job._measurer
    measurer.measure = lambda *_args: Measured(again, None, "stopped")
    measurer.request.job = ProfileRequest(command=JobCommand(("python", "train.py"), own_python=True))
    measurer.request.seed = None
    measurer.rule, measurer.tell = SimpleNamespace(most_seconds=3.0), print
    found = LoaderStage.tune(job, facts(0.1), waiting(0.1), ())
    assert (found.choice is not None) == kept
    assert found.trial.measured_speedup == pytest.approx(speedup)
