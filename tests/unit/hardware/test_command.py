"""Vendor tools are run without a shell, with a deadline, and answer with a reason when they cannot."""

import os
import signal
from pathlib import Path

import pytest

from flatout.hardware.command import run_tool
from tests.fakes.processes import wait_until_gone


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "vendor-smi"


def script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def hang(tool: Path, pid_file: Path) -> None:
    """Run a tool that hangs; for longer, where the machine is so slow that it did not come to its child."""
    for seconds in (1, 10, 60):
        output = run_tool([tool.name], timeout_s=seconds)
        assert f"no answer within {seconds} s" in output.reason
        if pid_file.exists() and pid_file.read_text():
            return
    pytest.fail("it never came to its child")


def test_the_output_comes_back(tool: Path) -> None:
    script(tool, 'echo "got $1"')
    assert run_tool([tool.name, "--json; rm -rf /"], timeout_s=60).text == "got --json; rm -rf /\n"


def test_a_missing_tool_is_a_reason() -> None:
    output = run_tool(["no-such-vendor-tool"], timeout_s=1)
    assert output.text is None
    assert output.reason == "no-such-vendor-tool is not installed"


def test_a_failing_tool_is_a_reason_with_its_last_words(tool: Path) -> None:
    script(tool, "echo first >&2; echo driver not loaded >&2; exit 9")
    assert run_tool([tool.name], timeout_s=60).reason == "vendor-smi exited with 9: driver not loaded"


def test_a_tool_that_hangs_is_ended_with_its_children(tool: Path, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script(tool, f"sleep 600 & echo $! > {pid_file}; wait")
    hang(tool, pid_file)
    assert wait_until_gone(int(pid_file.read_text()))


def test_a_tool_that_cannot_be_executed_is_a_reason(tool: Path) -> None:
    tool.write_bytes(b"\x7fELF nonsense")
    tool.chmod(0o755)
    output = run_tool([tool.name], timeout_s=60)
    assert output.text is None
    assert "could not be started" in output.reason


def test_bytes_that_are_not_text_do_not_break_it(tool: Path) -> None:
    script(tool, r"printf '\377\376ok'")
    text = run_tool([tool.name], timeout_s=60).text
    assert text is not None
    assert text.endswith("ok")


def test_a_grandchild_that_keeps_the_pipe_open_does_not_keep_us(tool: Path, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script(tool, f"setsid sleep 600 & echo $! > {pid_file}; sleep 600")
    hang(tool, pid_file)
    os.kill(int(pid_file.read_text()), signal.SIGKILL)  # it left our group: ours to clean up here only
