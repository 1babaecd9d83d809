"""A script that breaks off on its imagined GPU: what it took until then is not taken for its peak."""

import sys
from pathlib import Path
from typing import Any

import pytest

from flatout.memory.fit import fit_job
from flatout.memory.imagining import UPDATES, Imaginer, is_enough
from flatout.records.errors import JobFailed
from flatout.records.fit import Fit
from flatout.records.ledger import LedgerFile
from flatout.records.trial import Outcome, Shield, Trial
from flatout.runtime.command import JobCommand
from flatout.runtime.profiling import ProfileRequest

pytest.importorskip("torch")

BREAKS_OFF = """
import torch

model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for update in range(10):
    if update == {updates}:
        raise RuntimeError("planted")
    model(torch.randn(4, 8, device="cuda")).mean().backward()
    optimizer.step()
"""


def fitted(folder: Path, updates: int) -> Fit:
    (folder / "train.py").write_text(BREAKS_OFF.format(updates=updates))
    command = (sys.executable, str(folder / "train.py"))
    request = ProfileRequest(command=JobCommand(command, own_python=True, given=command))
    return fit_job(request, "fit", folder / "run", lambda *_: None)


def test_too_few_updates_are_no_peak_and_its_last_words_are_told(tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match=r"too few updates \(1\) and ended as 'failed'") as told:
        fitted(tmp_path, updates=1)
    assert "RuntimeError: planted" in told.value.received


def test_enough_updates_are_one_and_that_it_broke_off_is_told(tmp_path: Path) -> None:
    found = fitted(tmp_path, updates=3)
    assert found.updates == UPDATES
    assert found.peak_bytes
    assert found.notes[0] == "what comes after update 3 is not counted: the job failed: RuntimeError: planted"


def trial_that(outcome: Outcome) -> Trial:
    return Trial(
        name="imagined",
        folder="",
        command=(),
        outcome=outcome,
        updates=1,
        ranks=1,
        took_s=1.0,
        shield=Shield(kind="none"),
    )


@pytest.mark.parametrize(
    ("outcome", "updates", "enough"),
    [
        ("ended", 1, True),
        ("stopped", 3, True),
        ("failed", 2, False),
        ("silent", 1, False),
        ("failed", 3, True),
    ],
)
def test_whoever_ends_by_itself_may_end_early(outcome: Outcome, updates: int, enough: bool) -> None:
    ledger = LedgerFile(events=[], places=[], owners={}, updates=updates)
    assert is_enough(ledger, trial_that(outcome)) is enough


def test_levers_under_which_a_job_breaks_off_do_not_apply(monkeypatch: Any, tmp_path: Path) -> None:
    """Else what it had taken until then would be what the lever saves."""
    request: Any = None
    imaginer = Imaginer(request, tmp_path, lambda *_: None)
    for outcome, is_there in (("stopped", True), ("failed", False)):
        monkeypatch.setattr(imaginer, "run", lambda _levers, one=outcome: (trial_that(one), tmp_path))
        ledger = LedgerFile(events=[], places=[], owners={}, updates=1)
        monkeypatch.setattr("flatout.memory.imagining.largest_ledger", lambda _place, one=ledger: one)
        monkeypatch.setattr("flatout.memory.imagining.read_ranks", lambda _place: [Rank()])
        assert (imaginer.ledger(()) is not None) is is_there


class Rank:
    """Of a trial, whose levers are all on."""

    about: dict[str, Any] = {}  # noqa: RUF012
