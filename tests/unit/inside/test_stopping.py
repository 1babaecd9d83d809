"""How a trial ends: at the update that was asked for, together, saving nothing, leaving nobody."""

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from flatout.inside import stopping
from flatout.inside.stopping import asked_to_stop_after, wait_for_other_ranks
from flatout.records.session import KEEPER_VARIABLE, STOP_FILE, STOPPED_FILE

SOURCE = Path(__file__).parents[3] / "src"


def run(code: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", **environment},
        timeout=200,
    )


# The order to stop ------------------------------------------------------------------------------------------


def test_the_update_that_was_asked_for_is_read(tmp_path: Path) -> None:
    assert asked_to_stop_after(tmp_path) is None
    (tmp_path / STOP_FILE).write_text(json.dumps({"after_update": 42}))
    assert asked_to_stop_after(tmp_path) == 42


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '"x"', "{}", '{"after_update": null}', '{"after_update": "x"}']
)
def test_an_order_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / STOP_FILE).write_text(text)
    assert asked_to_stop_after(tmp_path) is None


# Together ---------------------------------------------------------------------------------------------------


def test_a_job_of_one_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _s: pytest.fail("it waited"))
    folder = tmp_path / "0-1"
    folder.mkdir()
    wait_for_other_ranks(folder, 1)
    assert (folder / STOPPED_FILE).exists()


def test_a_rank_leaves_when_all_have_come_this_far(tmp_path: Path) -> None:
    folders = [tmp_path / f"{rank}-{rank}" for rank in range(3)]
    for folder in folders:
        folder.mkdir()
    waiting = threading.Thread(target=wait_for_other_ranks, args=(folders[0], 3), daemon=True)
    waiting.start()
    (folders[1] / STOPPED_FILE).touch()
    waiting.join(0.3)
    assert waiting.is_alive()
    (folders[2] / STOPPED_FILE).touch()
    waiting.join(60)
    assert not waiting.is_alive()


def test_a_rank_that_never_comes_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "_OTHERS_S", 0.1)
    folder = tmp_path / "0-1"
    folder.mkdir()
    wait_for_other_ranks(folder, 2)
    assert (folder / STOPPED_FILE).exists()


def test_a_folder_that_is_gone_is_no_reason_to_raise(tmp_path: Path) -> None:
    wait_for_other_ranks(tmp_path / "gone", 2)
    assert not (tmp_path / "gone").exists()


# Leaving ----------------------------------------------------------------------------------------------------


def test_leaving_runs_nothing_that_would_save_and_says_what_was_said(tmp_path: Path) -> None:
    code = """
        import atexit, sys
        from pathlib import Path
        from flatout.inside.stopping import leave
        atexit.register(lambda: Path("at exit").touch())
        sys.stdout.write("the last words")
        try:
            leave()
        except BaseException:
            Path("except").touch()
        finally:
            Path("finally").touch()
    """
    done = run(code, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the last words", "")
    assert list(tmp_path.iterdir()) == []


def test_loader_workers_are_ended_and_other_children_are_not(tmp_path: Path) -> None:
    code = """
        import multiprocessing, os, time
        from pathlib import Path
        import torch
        from torch.utils.data import DataLoader
        from flatout.inside.stopping import leave

        class Slow(torch.utils.data.Dataset):
            def __len__(self):
                return 100

            def __getitem__(self, place):
                time.sleep(60 if place > 1 else 0)  # a worker in the middle of a batch hears nothing
                return place

        def mine():
            while os.getppid() == parent:  # until the parent has left
                time.sleep(0.01)
            Path("mine went on").touch()

        parent = os.getpid()
        child = multiprocessing.get_context("fork").Process(target=mine, daemon=True)
        child.start()
        batches = iter(DataLoader(Slow(), num_workers=2, multiprocessing_context="fork"))
        next(batches)
        Path("pids").write_text(" ".join(str(worker.pid) for worker in batches._workers))
        ForkProcess = multiprocessing.context.ForkProcess
        kill = ForkProcess.kill

        def slow_kill(process):  # so that torch's handler hears of the first death before the second kill
            kill(process)
            time.sleep(0.5)

        ForkProcess.kill = slow_kill
        leave()
    """
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr
    workers = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(workers) == 2
    deadline = time.monotonic() + 60
    while not all(map(is_gone, workers)) or not (tmp_path / "mine went on").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    """Ended, or waiting for a parent that has gone before it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


# The keeper -------------------------------------------------------------------------------------------------

ASK = """
    from flatout.inside.stopping import end_if_the_keeper_is_gone
    end_if_the_keeper_is_gone()
    print("goes on")
"""


def test_a_trial_whose_keeper_is_gone_ends_itself(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    done = run(ASK, tmp_path, **{KEEPER_VARIABLE: f"{gone.pid}:mark"})
    assert (done.returncode, done.stdout) == (97, "")


@pytest.mark.parametrize(
    "keeper",
    [f"{os.getpid()}:mark", "", "nonsense", ":mark", "1:mark"],
    ids=["ours", "empty", "nonsense", "no pid", "process 1"],
)
def test_a_trial_whose_keeper_lives_or_is_unknown_goes_on(tmp_path: Path, keeper: str) -> None:
    # Process 1 lives, and may belong to somebody else.
    done = run(ASK, tmp_path, **{KEEPER_VARIABLE: keeper})
    assert (done.returncode, done.stdout) == (0, "goes on\n")


def test_a_process_without_a_keeper_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEEPER_VARIABLE, raising=False)
    done = run(ASK, tmp_path)
    assert (done.returncode, done.stdout) == (0, "goes on\n")
