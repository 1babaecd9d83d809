"""Levers that change the training stay out of the proof; what they do to the losses is told."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flatout.levers.job import JobFacts
from flatout.records.plan import Choice
from flatout.runtime.command import job_command
from flatout.runtime.profiling import ProfileRequest
from flatout.tune import proof as module
from flatout.tune.guard_runs import GuardRun
from flatout.tune.proof import Proof, Run, own_threads
from flatout.tune.request import TuneRequest
from flatout.tune.turns import Room
from tests.profiles import profile

COLLECTOR, PARAMETERS = Choice(id="garbage-collector"), Choice(id="bf16-parameters")
PAIRING = {"parameters": "p", "inputs": [[1, "x"], [2, "y"]]}


def run(*losses: float, failed: str = "") -> GuardRun:
    return GuardRun(losses, ({"update": 1},), PAIRING, failed)


AS_WRITTEN = run(3.0, 2.0, 1.0)


class Recorded(Proof):
    """Proves from runs that have been made, by the names of their levers."""

    def __init__(self, folder: Path, runs: dict[str, GuardRun]) -> None:
        job = ProfileRequest(command=job_command(("true",), python="python"))
        super().__init__(TuneRequest(job=job), folder, profile(), JobFacts(), lambda *_: None)
        self.runs = runs
        self.asked: list[str] = []

    def _run(self, runs: Sequence[Run]) -> list[GuardRun]:
        names = ["+".join(choice.id for choice in levers) or name for name, levers, *_ in runs]
        self.asked += names
        return [self.runs[name] for name in names]


def proof(folder: Path, **more: Any) -> Recorded:
    known = {"as written": AS_WRITTEN, "garbage-collector": AS_WRITTEN}
    return Recorded(folder, known | {name.replace("_", "-"): one for name, one in more.items()})


def test_what_the_user_allowed_is_no_part_of_the_proof(tmp_path: Path) -> None:
    both = "garbage-collector+bf16-parameters"
    proving = proof(tmp_path, **{both: run(3.0, 2.5, 1.5)})
    chosen, evidence = proving.prove((COLLECTOR, PARAMETERS))
    assert chosen == (COLLECTOR, PARAMETERS)
    assert evidence.verdict == "same"
    assert evidence.allowed["levers"] == ["bf16-parameters"]
    assert (evidence.allowed["as_written"], evidence.allowed["allowed"]) == (1.0, 1.5)
    assert list(evidence.curves["with what you allowed"]) == [3.0, 2.5, 1.5]
    assert proving.asked == ["garbage-collector", "as written", both]


OTHER_DATA = {"parameters": "p", "inputs": [[1, "a"], [2, "b"]]}
LOADER = Choice(id="loader", settings={"num_workers": 4})
LOSSES = tuple(3.0 - step / 10 for step in range(12))


def sampled_otherwise(tmp_path: Path, rest: GuardRun) -> Recorded:
    written = GuardRun(LOSSES, ({"update": 1},), PAIRING)
    return Recorded(
        tmp_path,
        {
            "loader+garbage-collector": GuardRun(LOSSES, ({"update": 1},), OTHER_DATA),
            "loader": GuardRun(LOSSES, ({"update": 1},), OTHER_DATA),
            "garbage-collector": rest,
            **dict.fromkeys(("as written", "twin 1", "twin 2", "twin 3"), written),
        },
    )


def test_what_other_samples_hide_is_proven_without_them(tmp_path: Path) -> None:
    proving = sampled_otherwise(tmp_path, GuardRun(LOSSES, ({"update": 1},), PAIRING))
    chosen, evidence = proving.prove((LOADER, COLLECTOR))
    assert chosen == (LOADER, COLLECTOR)
    assert (evidence.verdict, evidence.paired) == ("same", True)
    assert "bit for bit" in evidence.reason
    assert "draws other samples" in evidence.reason
    assert proving.asked[-1] == "garbage-collector"


def test_what_learns_otherwise_does_not_hide_behind_other_samples(tmp_path: Path) -> None:
    proving = sampled_otherwise(tmp_path, GuardRun(LOSSES, ({"update": 1},), OTHER_DATA))
    chosen, evidence = proving.prove((LOADER, COLLECTOR))
    assert chosen == (LOADER,)
    assert evidence.verdict == "weak"
    assert "other parameters or inputs" in proving.unsafe["garbage-collector"]


def test_what_ran_short_of_memory_beside_others_runs_again_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes: dict[str, Iterator[str]] = {"plan": iter(("killed", "stopped")), "twin 1": iter(("stopped",))}
    told: list[str] = []

    def run_trial(plan: Any, place: Path) -> Any:
        place.mkdir()
        return SimpleNamespace(outcome=next(outcomes[plan.name.removeprefix("guard: ")]))

    monkeypatch.setattr(module, "run_trial", run_trial)
    monkeypatch.setattr(module.GuardRun, "read", lambda place: place)
    monkeypatch.setattr(module, "room_for", lambda *_: Room(2, 2))
    job = ProfileRequest(command=job_command(("true",), python="python"))
    proving = Proof(TuneRequest(job=job), tmp_path, profile(), JobFacts(), lambda text, *_: told.append(text))
    proving._run([("plan", (), 0.0, 0), ("twin 1", (), 0.0, 1)])
    assert all(not list(runs) for runs in outcomes.values())
    assert told[1:] == ["guard: 1 of 2 runs done", "guard: 2 of 2 runs done", "guard: 2 of 2 runs done"]


def test_runs_side_by_side_share_the_cores_of_a_gpus_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.tune.proof.cores_allowed", lambda _host: 16)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert own_threads(profile(device="cuda:0"), 5) == {"OMP_NUM_THREADS": "3"}
    assert own_threads(profile(device="cuda:0"), 1) == {}
    assert own_threads(profile(device="cpu"), 5) == {}
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert own_threads(profile(device="cuda:0"), 5) == {"OMP_NUM_THREADS": "2"}


def test_alone_it_is_held_against_the_script_as_written(tmp_path: Path) -> None:
    proving = proof(tmp_path, bf16_parameters=run(3.0, 2.0, 1.1))
    chosen, evidence = proving.prove((PARAMETERS,))
    assert chosen == (PARAMETERS,)
    assert evidence.verdict == "not needed"
    assert evidence.allowed["allowed"] == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("broken", "word"), [(run(3.0, math.nan, 1.0), "not finite"), (run(failed="it died"), "it died")]
)
def test_what_breaks_the_job_goes_allowed_or_not(tmp_path: Path, broken: GuardRun, word: str) -> None:
    proving = proof(tmp_path, **{"garbage-collector+bf16-parameters": broken})
    chosen, evidence = proving.prove((COLLECTOR, PARAMETERS))
    assert chosen == (COLLECTOR,)
    assert evidence.allowed == {}
    assert word in proving.unsafe["bf16-parameters"]
