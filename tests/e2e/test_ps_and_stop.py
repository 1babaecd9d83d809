"""`flatout ps` and `flatout stop` on real trainings, beside whatever else this machine runs."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.detached import Detached, kill, lives, until
from tests.e2e.conftest import Run

Start = Callable[..., Detached]

TRAINING = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 10_000_000
    def __getitem__(self, i):
        note("worker")
        if {blocks}:
            time.sleep(600)
        return torch.ones(4)
"""
SAVES = """
import flatout
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, x in enumerate(DataLoader(Numbers(), batch_size=2, num_workers=1)):
    model(x).sum().backward()
    optimizer.step()
    time.sleep(0.01)
    if step == 2:
        note("main")
    if flatout.stop_requested():
        torch.save(model.state_dict(), "model.pt")
        print("saved", flush=True)
        sys.exit(0)
"""
WAITS_FOR_DATA = """
note("main")
next(iter(DataLoader(Numbers(), batch_size=2, num_workers=1)))
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Detached] = []

    def begin(name: str, source: str, *under: str) -> Detached:
        folder = tmp_path / name
        folder.mkdir()
        variables = {"FLATOUT_CACHE_DIR": str(tmp_path / "cache")}
        if under:
            (folder / "train.py").write_text(_with_note(source))
            made = Detached(folder, sys.executable, "-m", "flatout", *under, "train.py", **variables)
        else:
            made = Detached.python(folder, source, **variables)
        started.append(made)
        return made

    yield begin
    for one in started:
        one.end()


def _with_note(source: str) -> str:
    return (
        "import os\ndef note(name):\n"
        "    open(name + '.part', 'w').write(str(os.getpid()))\n    os.replace(name + '.part', name)\n"
    ) + source


def job_of(done: "subprocess.CompletedProcess[str]", pid: int) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "flatout.ps/1"
    return next(job for job in document["jobs"] if job["pid"] == pid)


def test_a_training_under_run_is_listed_saves_when_stopped_and_is_gone(flatout: Run, start: Start) -> None:
    job = start("a", TRAINING.format(blocks=False) + SAVES, "run", "--as-written")
    beside = start("b", "import time\nnote('main')\nwhile True: time.sleep(600)\n")
    main, worker, other = job.noted("main"), job.noted("worker"), beside.noted("main")
    listed = job_of(flatout("ps", "--json"), job.pid)
    # And one that only sees whether a signal came to all.
    shown = [(one["role"], one["pid"]) for one in listed["processes"] if one["role"] != "helper"]
    assert shown == [("flatout", job.pid), ("script", main), ("loader worker", worker)]
    assert (listed["state"], listed["command"]) == ("running", "train.py")
    assert Path(listed["run_folder"]).is_relative_to(job.folder)
    assert listed["run"] in flatout("ps", COLUMNS="120").stdout

    done = flatout("stop", listed["run"], "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["schema"], document["ended"]) == ("flatout.stop/1", True)
    sent = {one["pid"]: one["signals"] for one in document["jobs"][0]["processes"]}
    assert sent[main] == ["SIGTERM"]
    assert sent[job.pid] == [], "flatout run ends with the script, and writes down how it went"
    assert not any(map(lives, (job.pid, main, worker)))
    assert lives(other)
    assert (job.folder / "model.pt").exists()
    assert "saved" in job.output
    manifest = json.loads((Path(listed["run_folder"]) / "run.json").read_text())
    assert manifest["status"] == "done"


def test_workers_of_a_killed_training_are_orphans_and_only_they_are_ended(flatout: Run, start: Start) -> None:
    job = start("a", TRAINING.format(blocks=True) + WAITS_FOR_DATA)
    main, worker = job.noted("main"), job.noted("worker")
    assert flatout("stop", "--orphans", str(worker)).returncode == 2, "its parent lives"
    kill(main)
    assert lives(worker), "it is blocked, and has noticed nothing"
    listed = job_of(flatout("ps", "--json"), worker)
    [process] = listed["processes"]
    assert (process["state"], process["role"]) == ("orphan", "loader worker")
    assert "gone" in process["state_reason"]
    shown = flatout("stop", "--orphans", str(worker), "--dry-run")
    assert (shown.returncode, str(worker) in shown.stdout) == (0, True)
    assert lives(worker)
    ended = flatout("stop", "--orphans", str(worker))
    assert ended.returncode == 0, ended.stderr
    assert not lives(worker)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no job was named"),
        (("no-such-job",), "no job 'no-such-job'"),
        (("1",), "first process"),
        (("4194303",), "no process 4194303"),
        (("--grace", "-1", "7"), "--grace"),
        ((str(os.getpid()),), "this command runs in it"),
    ],
)
def test_what_cannot_be_stopped_is_refused(flatout: Run, arguments: tuple[str, ...], words: str) -> None:
    done = flatout("stop", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "expected:" in done.stderr


def test_ctrl_c_while_it_waits_leaves_the_job_alone(start: Start, tmp_path: Path) -> None:
    ignores = "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: note('asked'))\nnote('main')\n"
    job = start("a", ignores + "while True: time.sleep(600)\n")
    main = job.noted("main")
    with subprocess.Popen(
        [sys.executable, "-m", "flatout", "stop", str(main)], stderr=subprocess.PIPE, text=True
    ) as stop:
        job.noted("asked")
        stop.send_signal(signal.SIGINT)
        _, error = stop.communicate(timeout=60)
    assert stop.returncode == 130
    assert "flatout ps" in error
    assert lives(main)


def test_the_table_fits_a_narrow_terminal(flatout: Run) -> None:
    for width in (40, 80):
        done = flatout("ps", COLUMNS=str(width))
        assert done.returncode == 0
        assert all(len(line) <= width for line in done.stdout.splitlines())


def test_a_job_that_was_stopped_by_name_is_no_longer_there(flatout: Run, start: Start) -> None:
    job = start("a", "import time\nnote('main')\nwhile True: time.sleep(600)\n")
    pid = str(job.noted("main"))
    assert flatout("stop", pid, "--quiet").returncode == 0
    until(lambda: not lives(int(pid)))
    assert flatout("stop", pid).returncode == 2
