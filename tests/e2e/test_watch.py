"""A whole run that is watched: recordings on the way, an alarm when steps become slower, nothing else."""

import json
from pathlib import Path

from tests.e2e.conftest import Run
from tests.e2e.jobs import QUICK

# Slower by far for a while, and as before again; a machine that is busy has moods of its own.
SLOWER_FOR_A_WHILE = (
    QUICK
    + """
for step in range(600):
    update()
    time.sleep(0.03 if 220 <= step < 330 else 0.002)
print("the end")
sys.exit(3)
"""
)


def test_steps_that_become_slower_raise_an_alarm_and_are_recorded(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SLOWER_FOR_A_WHILE)
    done = flatout("run", "--as-written", "--every", "150", "train.py")
    assert done.returncode == 3
    assert done.stdout == "the end\n"
    assert "steps have become" in done.stderr
    assert "profiler_st" not in done.stderr  # torch would write that whenever it begins and ends to record
    [document] = tmp_path.glob(".flatout/runs/*/job.json")
    found = json.loads(document.read_text())
    slower = [alarm for alarm in found["alarms"] if alarm["what"] == "slower"]
    assert any(220 < alarm["update"] <= 330 for alarm in slower)
    steps = [int(Path(path).name.partition("-step")[2].partition(".")[0]) for path in found["recordings"]]
    assert steps == sorted(steps)
    assert {150, 300, 450} <= set(steps)
    # One beside those, for the alarm.
    assert any(220 < step <= 330 and step != 300 for step in steps)
    shown = flatout("trace", "--json", found["recordings"][0])
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["steps"] == 3


def test_a_run_without_a_plan_is_as_written_and_says_so(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('ran')")
    done = flatout("run", "train.py")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "there is no flatout.toml" in done.stderr
    assert "flatout: as written" in done.stderr
    assert flatout("run", "--every", "5", "train.py").returncode == 2


def test_a_job_that_profiles_itself_runs_on_unwatched(flatout: Run, tmp_path: Path) -> None:
    script = (
        QUICK
        + """
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
    for _ in range(400):
        update()
print("the end")
"""
    )
    (tmp_path / "train.py").write_text(script)
    done = flatout("run", "--as-written", "--every", "100", "train.py")
    assert (done.returncode, done.stdout) == (0, "the end\n")
    assert not list(tmp_path.glob(".flatout/runs/*/job/ranks/*/rank0*"))
