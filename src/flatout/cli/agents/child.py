"""Runs one command as a process of its own, tells how it goes, and leaves nothing of it behind.

The command is the same that people type, so a tool can neither do nor say anything else; and what a driver or
a script does to it ends that process alone.
"""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import anyio
import anyio.abc
import msgspec
import psutil

from flatout.cli.listener import VARIABLE

Tell = Callable[[float, str], Awaitable[None]]

_OUTPUT_AT_MOST = 64 << 20
_TAIL_BYTES = 4096
_STILL_HERE_S = 5.0
_AFTER_KILL_S = 10.0
_PAUSE_S = 0.05
_LAST_WORDS_S = 1.0
_PAUSE_BETWEEN_WORDS_S = 1.0


class Progress(msgspec.Struct):
    """A line that `cli/listener.py` writes."""

    name: str = ""
    done: int = 0
    total: int = 0

    @property
    def words(self) -> str:
        """In a sentence."""
        return f"{self.name} ({self.done} of {self.total})" if self.total else self.name


@dataclasses.dataclass(frozen=True)
class Ended:
    """What a command left: its exit code (below 0: the signal), its document, and the end of its words."""

    exit_code: int
    output: bytes
    last_words: str
    too_long: bool = False


class Children:
    """The commands that run now."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[anyio.abc.Process, float] = {}

    async def run(self, words: Sequence[str], tell: Tell, *, grace_s: float) -> Ended:
        """Run `flatout words...`. When the caller is cancelled, the command and its processes end first."""
        reading, writing = os.pipe()
        try:
            process = await anyio.open_process(
                [sys.executable, "-m", "flatout", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self._folder,
                env={**os.environ, VARIABLE: str(writing)},
                start_new_session=True,
                pass_fds=(writing,),
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self._running[process] = grace_s
        try:
            return await _followed(process, reading, tell)
        finally:
            with anyio.CancelScope(shield=True):
                await _end(process, grace_s)
                await process.aclose()
            os.close(reading)
            del self._running[process]

    async def end_all(self) -> None:
        """End everything that runs now."""
        async with anyio.create_task_group() as group:
            for process, grace_s in list(self._running.items()):
                group.start_soon(_end, process, grace_s)


async def _followed(process: anyio.abc.Process, reading: int, tell: Tell) -> Ended:
    assert process.stdout is not None
    assert process.stderr is not None
    output, tail = bytearray(), bytearray()
    too_long = False

    said_all = anyio.Event()

    async def take_tail() -> None:
        assert process.stderr is not None
        async for piece in process.stderr:
            tail.extend(piece)
            del tail[:-_TAIL_BYTES]
        said_all.set()

    async with anyio.create_task_group() as group:
        group.start_soon(take_tail)
        group.start_soon(_tell_progress, reading, tell)
        async for piece in process.stdout:
            output.extend(piece)
            if len(output) > _OUTPUT_AT_MOST:
                too_long = True
                break
        if not too_long:
            await process.wait()
            with anyio.move_on_after(_LAST_WORDS_S):  # who it left behind may hold the pipe open
                await said_all.wait()
        group.cancel_scope.cancel()
    last_words = tail.decode(errors="replace")
    return Ended(process.returncode or 0, bytes(output), last_words, too_long=too_long)


async def _tell_progress(reading: int, tell: Tell) -> None:
    """Pass on what the command says of itself, once a second at most, and that it is still there."""
    began = time.monotonic()
    os.set_blocking(reading, False)
    now, rest = Progress("starting"), b""
    while True:
        with anyio.move_on_after(_STILL_HERE_S):
            await anyio.wait_readable(reading)
            piece = os.read(reading, 65536)
            if not piece:
                return
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines[-1:]:
                with contextlib.suppress(msgspec.DecodeError):
                    now = msgspec.json.decode(line, type=Progress)
        await tell(time.monotonic() - began, now.words)
        await anyio.sleep(_PAUSE_BETWEEN_WORDS_S)


async def _end(process: anyio.abc.Process, grace_s: float) -> None:
    """SIGTERM, time to put things away, SIGKILL; then whoever is left of its family."""
    family = _family(process)
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        with anyio.move_on_after(grace_s):
            await process.wait()
    if process.returncode is None:
        family = _family(process)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    # Keepers of trials see that whoever started them is gone, and take their families with them.
    deadline = time.monotonic() + _AFTER_KILL_S
    while any(map(_lives, family)) and time.monotonic() < deadline:
        await anyio.sleep(_PAUSE_S)
    for one in filter(_lives, family):
        with contextlib.suppress(psutil.Error):
            one.kill()


def _family(process: anyio.abc.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(process.pid).children(recursive=True) if process.returncode is None else []
    return []


def _lives(process: psutil.Process) -> bool:
    """Whether it is the same process still, and no zombie."""
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
