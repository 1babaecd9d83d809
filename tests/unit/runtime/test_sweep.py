"""The sweep over loader settings: what it tries, when it stops, and what it calls better.

Trials are stood in for by the files that they would leave; everything that reads and judges them is real.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flatout.analyze.profile import Peaks, build_profile
from flatout.records.machine import Host
from flatout.records.profile import LoaderSweep, Profile
from flatout.records.session import WORKERS_FOLDER
from flatout.records.trial import Trial
from flatout.runtime import sweep as module
from flatout.runtime.command import JobCommand
from flatout.runtime.profiling import TRIALS_FOLDER, ProfileRequest
from flatout.runtime.sweep import sweep_loader, worker_counts, workers_needed
from flatout.runtime.trial import TrialPlan
from tests.unit.analyze.events import MS, Event, closed, forward, loader, trial, write_rank

GIB = 1 << 30
PID = 100


def host(**changes: Any) -> Host:
    facts: dict[str, Any] = {
        "system": "Linux 6",
        "python_version": "3.11",
        "cpu_count": 8,
        "memory_available_bytes": 64 * GIB,
        **changes,
    }
    return Host(**facts)


@dataclasses.dataclass
class Job:
    """A job whose step is as long as its loader makes it; and what was tried on it."""

    step_ms: Callable[[dict[str, Any]], float]
    wait_ms: Callable[[dict[str, Any]], float] = lambda _settings: 20.0
    refused: str = ""
    refusing: str = "Data"
    worker_bytes: int = GIB
    broken: Callable[[dict[str, Any]], bool] = lambda _settings: False
    passes: dict[str, int] = dataclasses.field(default_factory=lambda: {"passes_with_kept_workers": 2})
    tried: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    plans: list[TrialPlan] = dataclasses.field(default_factory=list)

    def run(self, plan: TrialPlan, place: Path, *, on_progress: Any) -> Trial:
        settings = plan.order["loader"]
        self.tried.append(settings)
        self.plans.append(plan)
        assert not place.exists()
        overrides: list[dict[str, Any]] = [{"data_set": "Data", "applied": True, **self.passes}]
        if self.refused and settings.get("num_workers"):
            overrides.append({"data_set": self.refusing, "applied": False, "reason": self.refused})
        write_rank(place, self._events(settings), {"loader_overrides": overrides})
        workers = settings.get("num_workers") or 0
        (place / WORKERS_FOLDER).mkdir()
        for worker in range(workers):
            whole = {"pid": worker, "parent_pid": PID, "batches": 3, "own_bytes": self.worker_bytes}
            (place / WORKERS_FOLDER / f"{worker}.json").write_text(json.dumps(whole))
        if self.broken(settings):  # however many steps it had made by then
            return trial(updates=30, outcome="failed", exit_code=1, said=("Traceback", "OSError: no room"))
        return trial(updates=30)

    def _events(self, settings: dict[str, Any]) -> list[Event]:
        took, wait = round(self.step_ms(settings) * MS), round(self.wait_ms(settings) * MS)
        events: list[Event] = [("start", 0)]
        for place in range(30):
            at = place * took
            events += [loader(at, at + wait), forward(at + wait, at + took), closed(at + took, place + 1)]
        return events


@pytest.fixture
def profile(tmp_path: Path) -> Profile:
    """What `profile` found of the job as written: one loader without workers, on a CPU."""
    described = {"data_set": "pkg.Data", "num_workers": 0, "batch_size": 8, "pin_memory": False}
    events = Job(lambda _s: 100.0)._events({})
    write_rank(tmp_path / "profiled", events, {"device": "cpu", "loaders": [described]})
    return build_profile("run", trial(), tmp_path / "profiled", Peaks())


@pytest.fixture
def swept(tmp_path: Path, profile: Profile, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LoaderSweep]:
    def run(job: Job, machine: Host | None = None, **changes: Any) -> LoaderSweep:
        monkeypatch.setattr(module, "run_trial", job.run)
        monkeypatch.setattr(module, "read_host", lambda *, places: machine or host())
        folder = tmp_path / "run"
        (folder / TRIALS_FOLDER / "1-profile").mkdir(parents=True)
        request = ProfileRequest(command=JobCommand(("python", "x.py"), own_python=True), seed=5, seconds=7.0)
        found = sweep_loader(request, dataclasses.replace(profile, **changes), folder, lambda *_: None)
        assert found.loader_sweep is not None
        return found.loader_sweep

    return run


def slow_without_workers(settings: dict[str, Any]) -> float:
    """Each doubling of workers halves what the loader costs, down to the model's 50 ms."""
    return max(50.0, 100.0 / max(1, settings.get("num_workers", 0)))


# What is tried ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "counts"),
    [
        ({"cpu_count": 1}, [0, 1]),
        ({"cpu_count": 2}, [0, 1, 2]),
        ({"cpu_count": 6}, [0, 1, 2, 4, 6]),
        ({"cpu_count": 16}, [0, 1, 2, 4, 8, 16]),
        ({"cpu_count": 64, "cpu_affinity_count": 3}, [0, 1, 2, 3]),
        ({"cpu_count": 64, "cpu_quota": 4.9}, [0, 1, 2, 4]),
        ({"cpu_count": 64, "cpu_quota": 0.5}, [0, 1]),
        ({"cpu_count": None}, [0, 1]),
    ],
)
def test_workers_are_tried_up_to_the_cores_that_the_job_may_use(
    facts: dict[str, Any], counts: list[int]
) -> None:
    assert worker_counts(host(**facts)) == counts


def test_the_job_as_written_comes_first_and_is_not_tried_again(swept: Callable[..., LoaderSweep]) -> None:
    job = Job(slow_without_workers)
    swept(job)
    assert job.tried == [
        {},
        {"num_workers": 1, "persistent_workers": True},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 4, "persistent_workers": True},
        {"num_workers": 8, "persistent_workers": True},
    ]
    assert {plan.order["seed"] for plan in job.plans} == {5}
    assert {plan.stop.most_seconds for plan in job.plans} == {7.0}  # no longer than the user gives a profile


def test_more_workers_are_not_tried_once_nobody_waits(swept: Callable[..., LoaderSweep]) -> None:
    job = Job(
        slow_without_workers, wait_ms=lambda settings: 0.1 if settings.get("num_workers") == 2 else 20.0
    )
    found = swept(job)
    assert [settings.get("num_workers") for settings in job.tried] == [None, 1, 2]
    assert found.best == {"num_workers": 2, "persistent_workers": True}


def test_workers_that_would_not_fit_are_refused_with_the_reason(swept: Callable[..., LoaderSweep]) -> None:
    job = Job(slow_without_workers, worker_bytes=9 * GIB)
    found = swept(job, host(memory_available_bytes=40 * GIB))
    assert [settings.get("num_workers") for settings in job.tried] == [None, 1, 2]
    assert (found.rows[-1].settings, found.rows[-1].outcome) == ({"num_workers": 4}, "refused")
    assert "half of the free memory" in found.rows[-1].reason


def test_the_limit_of_a_container_counts_as_memory(swept: Callable[..., LoaderSweep]) -> None:
    job = Job(slow_without_workers)
    found = swept(job, host(memory_limit_bytes=8 * GIB, memory_limit_used_bytes=5 * GIB))
    assert [settings.get("num_workers") for settings in job.tried] == [None, 1]
    assert found.rows[-1].outcome == "refused"


def test_a_machine_that_tells_nothing_of_its_memory_is_tried_all_the_same(
    swept: Callable[..., LoaderSweep],
) -> None:
    job = Job(slow_without_workers, worker_bytes=900 * GIB)
    swept(job, host(memory_available_bytes=None))
    assert len(job.tried) == 5


def test_pinning_is_tried_on_a_gpu_with_the_best_so_far(swept: Callable[..., LoaderSweep]) -> None:
    def step_ms(settings: dict[str, Any]) -> float:
        return slow_without_workers(settings) - (10 if settings.get("pin_memory") else 0)

    job = Job(step_ms)
    found = swept(job, device="cuda:0")
    assert job.tried[-1] == {"num_workers": 2, "persistent_workers": True, "pin_memory": True}
    assert found.best == job.tried[-1]


# What is judged ---------------------------------------------------------------------------------------------


def test_the_fastest_setting_is_named_with_its_gain(swept: Callable[..., LoaderSweep]) -> None:
    found = swept(Job(slow_without_workers))
    assert found.best == {"num_workers": 2, "persistent_workers": True}
    assert found.reason == "100% more samples a second than as written"
    first = found.rows[0]
    assert (first.settings, first.outcome, first.step_ms, first.wait_ms) == ({}, "measured", 100.0, 20.0)
    assert first.samples_per_s == pytest.approx(80)
    assert first.unknown["host_bytes"] == "no worker reported its memory"
    assert found.rows[2].host_bytes == 2 * GIB


def test_a_gain_of_less_than_three_percent_is_no_reason_to_change(swept: Callable[..., LoaderSweep]) -> None:
    found = swept(Job(lambda settings: 98.0 if settings else 100.0))
    assert found.best is None
    assert "3 %" in found.reason
    assert len(found.rows) == 5


def test_what_the_training_loader_refuses_ends_the_sweep(swept: Callable[..., LoaderSweep]) -> None:
    job = Job(slow_without_workers, refused="it would yield everything twice")
    found = swept(job)
    assert [row.outcome for row in found.rows] == ["measured", "refused"]
    assert found.rows[1].reason == "it would yield everything twice"
    assert found.best is None


@pytest.mark.parametrize(
    "passes",
    [{}, {"passes_with_new_workers": 2}, {"passes_with_kept_workers": 5, "passes_with_new_workers": 1}],
)
def test_workers_live_on_only_where_the_data_set_was_seen_to_stay_the_same(
    swept: Callable[..., LoaderSweep], passes: dict[str, int]
) -> None:
    found = swept(Job(slow_without_workers, passes=passes))
    assert found.best == {"num_workers": 2}


@pytest.mark.parametrize("other", ["HeldOut", "OtherData"])
def test_what_another_loader_refuses_does_not(swept: Callable[..., LoaderSweep], other: str) -> None:
    found = swept(Job(slow_without_workers, refused="it streams", refusing=other))
    assert found.best == {"num_workers": 2, "persistent_workers": True}


def test_a_setting_that_breaks_the_job_is_told_and_the_next_is_tried(
    swept: Callable[..., LoaderSweep],
) -> None:
    job = Job(slow_without_workers, broken=lambda settings: settings.get("num_workers") == 1)
    found = swept(job)
    assert (found.rows[1].outcome, found.rows[1].reason) == ("failed", "the job failed: OSError: no room")
    assert found.best == {"num_workers": 2, "persistent_workers": True}


def test_a_job_that_cannot_be_repeated_is_not_swept(swept: Callable[..., LoaderSweep]) -> None:
    found = swept(Job(slow_without_workers, broken=lambda _settings: True))
    assert found.best is None
    assert "could not be repeated" in found.reason
    assert len(found.rows) == 1


def test_a_job_without_a_loader_or_without_a_pace_is_not_swept(swept: Callable[..., LoaderSweep]) -> None:
    job = Job(slow_without_workers)
    assert swept(job, loaders=()).reason == "the script uses no DataLoader"
    assert job.tried == []


def test_a_job_without_a_step_time_is_not_swept(swept: Callable[..., LoaderSweep]) -> None:
    job = Job(slow_without_workers)
    assert "no steady step time" in swept(job, step_ms=None).reason
    assert job.tried == []


@pytest.mark.parametrize(
    ("load_ms", "step_ms", "cores", "counts"),
    [
        (10.0, 100.0, 16, [1, 2]),  # one keeps up
        (100.0, 30.0, 16, [4, 8]),
        (100.0, 5.0, 16, [8, 14]),  # all that may be taken would not do: half of them leaves some to the loop
        (100.0, 15.0, 16, [8, 14]),  # twice as many would be all cores
        (100.0, 5.0, 4, [2, 4]),
        (100.0, 5.0, 1, [1]),
        (0.0, 0.0, 2, [1, 2]),
    ],
)
def test_workers_are_reckoned_from_what_a_batch_and_a_step_take(
    load_ms: float, step_ms: float, cores: int, counts: list[int]
) -> None:
    assert workers_needed(load_ms, step_ms, host(cpu_affinity_count=cores, cpu_quota=None)) == counts


def test_beside_a_job_that_computes_on_a_gpu_workers_may_have_the_cores() -> None:
    machine = host(cpu_affinity_count=16, cpu_quota=None)
    assert workers_needed(100.0, 5.0, machine, on_gpu=True) == [14]
    assert workers_needed(100.0, 30.0, machine, on_gpu=True) == [4, 8]
