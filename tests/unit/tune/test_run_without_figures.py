"""A job's end is told as it was, also where what Flatout noted of its steps cannot be read."""

from pathlib import Path

import pytest

from flatout.records.plan import Plan
from flatout.runtime.command import job_command
from flatout.tune import running
from flatout.tune.fingerprints import fingerprint
from flatout.tune.running import run_job


@pytest.mark.parametrize("code", [0, 7])
def test_figures_that_cannot_be_made_change_no_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(_place: Path) -> None:
        raise ValueError("not a number")

    monkeypatch.setattr(running, "read_ranks", fail)
    script = tmp_path / "job.py"
    script.write_text(f"raise SystemExit({code})\n")
    command = job_command((str(script),))
    plan = Plan(job=fingerprint(command, None, {}), levers=())
    done = run_job(plan, command, "r", tmp_path / "r")
    assert done.exit_code == code
    assert done.notes == ("its figures are missing: ValueError: not a number",)
    assert done.steps is None, "what is not known is not nothing"
    assert done.unknown["steps"] == done.notes[0]
