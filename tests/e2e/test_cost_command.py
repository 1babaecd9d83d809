"""`flatout cost` on run folders as they lie on disk: a running job, all jobs, and mistakes."""

import json
from pathlib import Path

from tests.e2e.conftest import Run
from tests.unit.tune.test_costing import JOB, folder_with


def test_a_running_job_is_told_in_dollars_by_cause_and_at_ones_own_price(
    flatout: Run, tmp_path: Path
) -> None:
    folder_with(tmp_path, JOB)
    shown = flatout("cost", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "train.py --lr 3e-4" in shown.stdout
    listed, own = (
        json.loads(flatout("cost", "--json", *words, cwd=tmp_path).stdout)
        for words in ((), ("--usd-per-hour", "2"))
    )
    assert listed["schema"] == "flatout.cost/1"
    [run] = listed["runs"]
    # Two GPUs for an hour, 1,000 steps of three seconds made in it.
    assert listed["gpu_hours"] == 2.0
    assert run["steps"] == 1000
    assert 0 < listed["unused_gpu_hours"] < listed["gpu_hours"]
    assert run["cost"]["usd"] == own["runs"][0]["cost"]["usd"] * run["cost"]["price"]["usd_per_gpu_hour"] / 2


def test_all_jobs_are_summed(flatout: Run, tmp_path: Path) -> None:
    folder_with(tmp_path, JOB)
    folder_with(tmp_path, JOB)
    found = json.loads(flatout("cost", "--all", "--json", cwd=tmp_path).stdout)
    assert len(found["runs"]) == 2
    assert found["gpu_hours"] == 4.0
    assert found["usd"] == sum(run["cost"]["usd"] for run in found["runs"])


def test_one_damaged_account_leaves_the_others(flatout: Run, tmp_path: Path) -> None:
    folder_with(tmp_path, JOB)
    (folder_with(tmp_path, JOB).path / "live.json").write_text("{")
    done = flatout("cost", "--all", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["gpu_hours"] == 2.0


def test_mistakes_are_told(flatout: Run, tmp_path: Path) -> None:
    nothing = flatout("cost", cwd=tmp_path)
    assert nothing.returncode == 2
    assert "no job was run yet" in nothing.stderr
    assert "flatout run" in nothing.stderr
    both = flatout("cost", "latest", "--all", cwd=tmp_path)
    assert (both.returncode, both.stdout) == (2, "")
