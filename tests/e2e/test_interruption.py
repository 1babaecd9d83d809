"""Stopping a command, politely or not, leaves no process behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.fakes.processes import wait_until_gone


def start(tmp_path: Path, *arguments: str) -> tuple[subprocess.Popen[str], int]:
    """The command, and the PID of its child once there is one."""
    command = subprocess.Popen(
        [sys.executable, "-m", "flatout", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "FLATOUT_CACHE_DIR": str(tmp_path)},
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        children = [c for c in psutil.Process(command.pid).children() if _measures(c)]
        if children:
            return command, children[0].pid
        time.sleep(0.02)
    command.kill()
    pytest.fail("the command never started a child")


def _measures(process: psutil.Process) -> bool:
    try:
        line = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return "flatout.limits.worker" in line or "compute.py torch" in line


COMMANDS = [("limits", "--device", "cpu"), ("doctor",)]


@pytest.mark.parametrize("arguments", COMMANDS)
def test_ctrl_c_ends_the_child_and_exits_with_130(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    command, child = start(tmp_path, *arguments)
    time.sleep(0.3)
    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=60)
    assert command.returncode == 130
    assert out == ""
    assert err.strip() == "stopped"
    assert wait_until_gone(child)
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_killed_command_takes_its_child_along(
    tmp_path: Path, arguments: tuple[str, ...], how: signal.Signals
) -> None:
    command, child = start(tmp_path, *arguments)
    time.sleep(0.2)
    command.send_signal(how)
    command.communicate(timeout=60)
    assert command.returncode == -how
    assert wait_until_gone(child)
