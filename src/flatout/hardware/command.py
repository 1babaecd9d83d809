"""Runs a vendor's command line tool: no shell, a deadline, and a reason instead of an exception."""

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Protocol

_REAP_S = 2.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolOutput:
    """What a tool printed, or why there is nothing. `text` is None exactly when `reason` is not empty."""

    text: str | None
    reason: str = ""


class RunTool(Protocol):
    """The edge that tests replace with recorded output."""

    def __call__(self, arguments: Sequence[str], *, timeout_s: float) -> ToolOutput:
        """Run a tool by name and return its standard output."""


def run_tool(arguments: Sequence[str], *, timeout_s: float) -> ToolOutput:
    """Run `arguments` and return its standard output, or the reason why there is none."""
    name = arguments[0]
    path = shutil.which(name)
    if path is None:
        return ToolOutput(text=None, reason=f"{name} is not installed")
    try:
        child = subprocess.Popen(
            [path, *arguments[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
        )
    except OSError as error:
        return ToolOutput(text=None, reason=f"{name} could not be started: {error.strerror or error}")
    try:
        out, err = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return ToolOutput(text=None, reason=f"{name} gave no answer within {timeout_s:g} s")
    finally:
        end_child(child)
    if child.returncode != 0:
        words = err.decode(errors="replace").strip().splitlines()
        said = f": {words[-1]}" if words else ""
        return ToolOutput(text=None, reason=f"{name} exited with {child.returncode}{said}")
    return ToolOutput(text=out.decode(errors="replace"))


def start_worker(
    module: str, order: str, environment: Mapping[str, str]
) -> "tuple[subprocess.Popen[bytes], IO[bytes]]":
    """A module of ours in a child with a session of its own, and the pipe by which it tells what it finds.

    It gets the pipe's descriptor and the order as arguments.
    """
    reader, writer = os.pipe()
    events = os.fdopen(reader, "rb")
    try:
        child = subprocess.Popen(
            # -P: a statistics.py or torch.py in the user's folder is not ours to import.
            [sys.executable, "-P", "-m", module, str(writer), order],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
            pass_fds=(writer,),
            start_new_session=True,
        )
    except BaseException:
        events.close()
        raise
    finally:
        os.close(writer)
    return child, events


def end_child(child: "subprocess.Popen[bytes]") -> None:
    """Kill a child that we started in its own session, with its group, reap it, and close its pipes.

    A process that hangs in the driver cannot be killed: it is left behind after a moment, never waited for.
    """
    end_process_group(child.pid)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=_REAP_S)
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()


def end_process_group(leader_pid: int) -> None:
    """Kill everything in the group of a process that we started in its own session."""
    # macOS answers "not permitted" for a group of which only a zombie is left.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader_pid, signal.SIGKILL)
