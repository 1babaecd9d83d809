"""Levers that change the training stay out of the proof; what they do to the losses is told."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flatout.levers.job import JobFacts
from flatout.records.plan import Choice
from flatout.runtime.command import job_command
from flatout.runtime.profiling import ProfileRequest
from flatout.tune.guard_runs import GuardRun
from flatout.tune.proof import Proof, Run
from flatout.tune.request import TuneRequest
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
