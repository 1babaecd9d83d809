"""A protected job whose Flatout was killed trains on: it is found, never started a second time."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.e2e.conftest import Run

TRAINS_ON = """
import pathlib, time
import torch
torch.manual_seed(0); torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for number in range(2000):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    print(number, flush=True)
    if not pathlib.Path("quickly").exists():
        time.sleep(0.05)
"""
PROTECTED = ("run", "--protect", "--no-rehearsal", "--save-every", "100000", "train.py")


def test_it_is_not_started_twice_and_goes_on_once_it_was_stopped(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS_ON)
    command = [sys.executable, "-m", "flatout", *PROTECTED]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as first:
        assert first.stdout is not None
        while first.stdout.readline().strip() != "5":
            assert first.poll() is None
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        _refused_then_stopped_then_gone_on(flatout, tmp_path)


def _refused_then_stopped_then_gone_on(flatout: Run, tmp_path: Path) -> None:

    again = flatout(*PROTECTED)
    assert again.returncode == 2
    assert "this job still runs as process" in again.stderr
    run = next(path.name for path in (tmp_path / ".flatout" / "runs").iterdir())
    assert f"flatout stop {run}" in again.stderr

    here = json.loads(flatout("--json").stdout)
    assert [one["id"] for one in here["running"]] == [run]
    assert "its Flatout was killed" in here["running"][0]["about"]

    stopped = flatout("stop", run)
    assert stopped.returncode == 0, stopped.stderr
    (tmp_path / "quickly").touch()
    last = flatout(*PROTECTED)
    assert last.returncode == 0, last.stderr
    assert "goes on from update" in last.stderr
    printed = last.stdout.splitlines()
    assert int(printed[0]) > 5
    assert printed[-1] == "1999"
