"""A signal reaches the process that was seen, or nobody."""

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from flatout.runtime import pinned
from flatout.runtime.pinned import Pin
from flatout.runtime.process_table import Seen, has_ended, read_table, start_of

WAIT_S = 60


@pytest.fixture
def child() -> "Iterator[subprocess.Popen[bytes]]":
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


@pytest.fixture(params=["descriptor", "none"])
def seen_child(
    child: "subprocess.Popen[bytes]", request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Seen:
    if request.param == "none":  # as on older kernels, and other systems
        monkeypatch.delattr(pinned.os, "pidfd_open")
    found = read_table().get(child.pid)
    assert found is not None
    return found


def test_a_signal_reaches_the_process(child: "subprocess.Popen[bytes]", seen_child: Seen) -> None:
    pin = Pin(seen_child)
    assert not pin.gone
    assert pin.send(signal.SIGTERM)
    assert child.wait(WAIT_S) == -signal.SIGTERM
    assert pin.gone
    assert not pin.send(signal.SIGTERM)
    pin.close()


def test_a_pid_that_is_anothers_now_is_spared(child: "subprocess.Popen[bytes]", seen_child: Seen) -> None:
    earlier = dataclasses.replace(seen_child, start=seen_child.start - 1)
    pin = Pin(earlier)
    assert pin.gone
    assert not pin.send(signal.SIGKILL)
    assert child.poll() is None


def test_a_pid_that_changes_hands_after_the_pin_is_spared(
    child: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(pinned.os, "pidfd_open")
    found = read_table().get(child.pid)
    assert found is not None
    starts = iter([found.start, found.start + 1])
    pin = Pin(found, start_now=lambda _pid: next(starts))
    assert not pin.send(signal.SIGKILL), "it is another process by now"
    assert child.poll() is None


def test_a_zombie_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = read_table().get(child.pid)
        assert found is not None
        pin = Pin(found)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it stays until its parent takes notice
        assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE
        assert start_of(child.pid) == found.start
        assert has_ended(child.pid, found.start)
        assert pin.gone
        table = read_table()
        assert table.by_pid[child.pid].zombie
    assert start_of(child.pid) is None
    pin.close()
