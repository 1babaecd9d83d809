"""`flatout run --log-to`: a job's figures and what its script logs, side by side; trials log nowhere."""

import gzip
import importlib.util
import json
from pathlib import Path

import pytest

from flatout.records.points import Point, point_of
from tests.e2e.conftest import Run
from tests.e2e.jobs import QUICK

LOGS = (
    QUICK
    + """
import flatout
for number in range(160):
    flatout.log({"mine": update()}, step=10 * number)
    time.sleep(0.01)
print("the end")
sys.exit(5)
"""
)


def read(path: Path) -> list[Point]:
    return [point for line in path.read_text().splitlines() if (point := point_of(line)) is not None]


def named(points: list[Point], name: str) -> list[tuple[int, float]]:
    return [(point.step, point.values[name]) for point in points if name in point.values]


def test_figures_of_an_unmodified_job_and_what_it_logs_arrive_together(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOGS)
    sinks = "jsonl:out/all.jsonl"
    if importlib.util.find_spec("tensorboard") is not None:
        sinks += ",tensorboard:board"
    done = flatout("run", "--as-written", "--every", "110", "--log-to", sinks, "train.py")
    assert (done.returncode, done.stdout) == (5, "the end\n"), done.stderr
    points = read(tmp_path / "out" / "all.jsonl")
    mine = named(points, "mine")
    assert [step for step, _ in mine] == [10 * number for number in range(160)]
    losses = dict(named(points, "flatout/loss"))
    # The session saw the same losses on their way, by the number of the update.
    assert losses.keys() >= set(range(1, 61))
    assert all(losses[update] == pytest.approx(mine[update - 1][1], rel=1e-6) for update in range(1, 61))
    assert named(points, "flatout/step_seconds")[-1][1] > 0.009
    assert named(points, "flatout/samples_per_second")[-1][1] > 0
    assert len(list(tmp_path.glob(".flatout/runs/*/job/ranks/*/logged.jsonl"))) == 1
    [document] = tmp_path.glob(".flatout/runs/*/job.json")
    told = json.loads(document.read_text())["logged_to"]
    assert told[0] == {"target": "jsonl:out/all.jsonl", "points": len(points), "dropped": 0, "failure": ""}
    if "tensorboard" in sinks:
        assert list(tmp_path.glob("board/events.out.tfevents.*"))
        [trace] = tmp_path.glob("board/plugins/profile/*-step110/rank0.pt.trace.json.gz")
        assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]


def test_a_sink_that_fails_is_told_and_the_job_never_hears_of_it(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(QUICK + "for _ in range(20): update()\nprint('the end')")
    (tmp_path / "file").touch()
    done = flatout("run", "--as-written", "--log-to", "jsonl:file/below,jsonl:good", "--json", "train.py")
    assert done.returncode == 0
    bad, good = json.loads(done.stdout)["logged_to"]
    assert bad["failure"]
    assert not good["failure"]
    assert good["points"] >= 20
    assert done.stderr.count("turned off") == 1


@pytest.mark.full
def test_a_trial_logs_nowhere_and_its_recording_goes_to_tensorboard(flatout: Run, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs flatout[tensorboard]")
    script = QUICK + "import flatout\nflatout.log.to('jsonl', 'leak.jsonl')\n"
    script += "while True:\n    flatout.log({'mine': update()})\n"
    (tmp_path / "train.py").write_text(script)
    done = flatout("profile", "--steps", "20", "--no-limits", "--log-to", "tensorboard:board", "train.py")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "leak.jsonl").exists()
    assert not list(tmp_path.rglob("logged.jsonl"))
    assert list(tmp_path.glob("board/plugins/profile/*/rank0.pt.trace.json.gz"))
    assert not list(tmp_path.glob("board/events*"))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("run", "--log-to", "tensorbord:x"), 2, "did you mean 'tensorboard'"),
        (("run", "--log-to", "jsonl:a,jsonl:a"), 2, "named twice"),
        (("profile", "--log-to", "jsonl:a"), 2, "trials log to no service"),
    ],
)
def test_mistakes_end_before_the_job_begins(
    flatout: Run, tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    (tmp_path / "train.py").write_text("open('ran', 'w')")
    done = flatout(*words, "train.py")
    assert done.returncode == code
    assert said in done.stderr
    assert not (tmp_path / "ran").exists()
    assert "Traceback" not in done.stderr
