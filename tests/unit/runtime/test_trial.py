"""A trial as it is kept in its folder, whatever its script is called and given."""

import json
import os
import sys
from pathlib import Path

from flatout.runtime.command import job_command
from flatout.runtime.progress import StopRule
from flatout.runtime.trial import TRIAL_FILE, TrialPlan, run_trial


def test_bytes_that_are_no_utf8_arrive_in_the_script_and_are_kept_as_escapes(tmp_path: Path) -> None:
    odd = os.fsdecode(b"\xff")
    script = tmp_path / f"train{odd}.py"
    script.write_text("import os, sys; print([os.fsencode(word) for word in sys.argv[1:]])")
    plan = TrialPlan(name="odd", command=job_command([str(script), odd]), stop=StopRule(updates=1))
    folder = tmp_path / "trial"
    trial = run_trial(plan, folder)
    assert (trial.outcome, trial.exit_code) == ("ended", 0), trial.said
    assert (folder / "stdout.txt").read_text() == "[b'\\xff']\n"
    kept = json.loads((folder / TRIAL_FILE).read_text())
    assert kept["command"] == [sys.executable, f"{tmp_path}/train\\udcff.py", "\\udcff"]
