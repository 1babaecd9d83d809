"""One writer a folder, and a lock that dies with its holder (fault 40)."""

import fcntl
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flatout.records.errors import CannotWrite, LockHeld
from flatout.records.lock import folder_lock, is_locked

HOLDER = """
import sys
from pathlib import Path
from flatout.records.lock import folder_lock
with folder_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from flatout.records.lock import folder_lock, is_locked
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
with folder_lock(Path(sys.argv[1])):
    print(is_locked(Path(sys.argv[1])))
"""


@contextmanager
def holder(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds the lock until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process


def test_a_second_process_is_refused_and_told_who_holds_the_folder(tmp_path: Path) -> None:
    with holder(tmp_path) as other:
        assert is_locked(tmp_path)
        with pytest.raises(LockHeld) as refused, folder_lock(tmp_path):
            pytest.fail("the lock was given twice")
        assert f"process {other.pid} on {platform.node()}" in refused.value.received
        assert refused.value.exit_code == 3
        assert is_locked(tmp_path), "being refused takes nothing away"


def test_the_lock_is_free_once_its_holder_ends(tmp_path: Path) -> None:
    with holder(tmp_path):
        pass
    assert not is_locked(tmp_path)
    with folder_lock(tmp_path):
        assert is_locked(tmp_path)


def test_the_lock_of_a_killed_holder_is_free_and_names_the_next_one(tmp_path: Path) -> None:
    with holder(tmp_path) as other:
        other.kill()
        other.wait()
    assert json.loads((tmp_path / "lock").read_bytes())["pid"] == other.pid, "its name is still there"
    assert not is_locked(tmp_path)
    with folder_lock(tmp_path):
        assert json.loads((tmp_path / "lock").read_bytes()) == {"pid": os.getpid(), "host": platform.node()}


def test_a_longer_name_of_a_dead_holder_leaves_no_rest(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(json.dumps({"pid": 2**22, "host": "a-node-with-a-very-long-name" * 9}))
    with folder_lock(tmp_path):
        assert json.loads((tmp_path / "lock").read_bytes())["pid"] == os.getpid()


def test_an_exception_inside_gives_the_lock_back(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), folder_lock(tmp_path):
        raise ZeroDivisionError
    assert not is_locked(tmp_path)


def test_the_same_process_cannot_hold_it_twice(tmp_path: Path) -> None:
    with (
        folder_lock(tmp_path),
        pytest.raises(LockHeld, match=f"process {os.getpid()}"),
        folder_lock(tmp_path),
    ):
        pytest.fail("the lock was given twice")


def test_locks_of_different_names_do_not_meet(tmp_path: Path) -> None:
    with folder_lock(tmp_path), folder_lock(tmp_path, name="other"):
        assert is_locked(tmp_path, name="other")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b'{"pid": "x", "host": 1}', b"{}"])
def test_a_holder_with_an_unreadable_name_is_another_process(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lock").write_bytes(content)
    with (tmp_path / "lock").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(LockHeld, match="another process"), folder_lock(tmp_path):
            pytest.fail("the lock was given twice")
    assert (tmp_path / "lock").read_bytes() == content


def test_a_folder_without_a_lock_is_not_locked(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    assert not is_locked(tmp_path / "missing")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_cannot_be_locked(tmp_path: Path) -> None:
    with pytest.raises(CannotWrite), folder_lock(tmp_path / "missing"):
        pytest.fail("there is nothing to lock")


def test_on_a_full_disk_the_lock_still_holds(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    assert done.stdout == "True\n"
    assert (tmp_path / "lock").read_bytes() == b"", "the disk was really full"


def test_who_only_looks_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look holds the lock for a moment."""
    real, refused = fcntl.flock, []

    def looked_at(descriptor: int, operation: int) -> None:
        if not refused:
            refused.append(operation)
            raise BlockingIOError
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", looked_at)
    with folder_lock(tmp_path):
        assert is_locked(tmp_path)
    assert len(refused) == 1


def test_a_disk_without_locks_lets_the_run_go_on_and_its_holder_is_known_by_its_pid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []

    def no_locks(_: int, operation: int) -> None:
        refused.append(operation)
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    inside = False
    with folder_lock(tmp_path):
        inside = True
        assert is_locked(tmp_path)
    assert inside
    assert len(refused) == 2
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for host, pid, expected in ((platform.node(), ended.pid, False), ("elsewhere", os.getpid(), None)):
        (tmp_path / "lock").write_text(json.dumps({"pid": pid, "host": host}))
        assert is_locked(tmp_path) is expected
    (tmp_path / "lock").write_text("")
    assert is_locked(tmp_path) is None
