"""The autopsy of a job: what it imagines, where, with how much memory, and what a failure there becomes."""

import json
from pathlib import Path
from typing import Any

import pytest

from flatout.memory import autopsy as of_autopsy
from flatout.memory import imagining
from flatout.memory.autopsy import autopsy
from flatout.memory.planning import CONTEXT_BYTES
from flatout.records.autopsy import Autopsy
from flatout.runtime.command import job_command
from flatout.runtime.profiling import ProfileRequest
from flatout.runtime.trial import TrialPlan

GIB = 1 << 30
CHECKPOINTING = {"id": "block-checkpointing", "settings": {"share": 0.5}}


def died(place: Path, **noted: Any) -> Path:
    rank = place / "ranks" / "0-1"
    rank.mkdir(parents=True)
    known = {"message": "more was asked for", "on_gpu": True, "device_bytes": 16 * GIB}
    (rank / "out-of-memory.json").write_text(json.dumps({**known, **noted}))
    return place


def autopsy_in(place: Path, **order: Any) -> Autopsy:
    command = job_command([str(Path(__file__))])
    found = autopsy(ProfileRequest(command=command, order=order), "a run", place, lambda *_: None)
    assert found is not None
    return found


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[tuple[TrialPlan, Path]]:
    seen: list[tuple[TrialPlan, Path]] = []

    def run_trial(plan: TrialPlan, folder: Path, **_more: Any) -> Any:
        folder.mkdir(parents=True)
        seen.append((plan, folder))
        raise OSError("no space left")

    monkeypatch.setattr(imagining, "run_trial", run_trial)
    return seen


def test_each_life_of_a_run_is_imagined_in_its_own_place_and_a_failure_there_is_a_note(
    trials: list[tuple[TrialPlan, Path]], tmp_path: Path
) -> None:
    for place in ("job", "job-2"):
        notes = autopsy_in(died(tmp_path / place)).notes
        assert notes == ("what would help could not be found: no space left",)
    assert [folder.parents[1].name for _, folder in trials] == ["job", "job-2"]


def test_the_job_is_imagined_as_it_ran_with_its_plans_levers_on(
    trials: list[tuple[TrialPlan, Path]], tmp_path: Path
) -> None:
    autopsy_in(died(tmp_path / "job"), levers=[CHECKPOINTING], loader={"batch_size": 8, "num_workers": 4})
    [(plan, _)] = trials
    assert plan.order["levers"] == [CHECKPOINTING]
    assert plan.order["taps"] == ["steps", "forward"]
    assert (plan.order["loader"]["batch_size"], plan.order["loader"]["num_workers"]) == (8, 0)


@pytest.mark.parametrize("others", [0, CONTEXT_BYTES // 2, 3 * GIB])
def test_of_what_is_not_seen_as_ours_our_own_context_is_ours(
    others: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: list[int] = []

    def fit_job(*_args: Any, max_memory_bytes: int, **_more: Any) -> Any:
        given.append(max_memory_bytes)
        raise ValueError

    monkeypatch.setattr(of_autopsy, "fit_job", fit_job)
    found = autopsy_in(died(tmp_path / "job", free_bytes=GIB, reserved_bytes=15 * GIB - others))
    assert given == [16 * GIB - others + min(others, CONTEXT_BYTES)]
    assert found.notes == ("what would help could not be found: ValueError",)
