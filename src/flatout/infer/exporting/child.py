"""Flatout's side of an export: starts the child, listens, turns its words into errors. No torch here."""

import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import IO, Any

import msgspec

from flatout.hardware.command import end_child
from flatout.records.errors import (
    EXIT_CALLER,
    EXIT_JOB,
    CallerMistake,
    ChildFailed,
    EnvironmentProblem,
    FlatoutError,
    JobFailed,
    MissingExtra,
)
from flatout.records.packages import ExportedModel, ExportOrder

OnStage = Callable[[str, int, int], None]

_STAGES = ("importing torch", "making the module", "following its code", "compiling", "comparing")


def export_in_child(order: ExportOrder, on_stage: OnStage, *, complaints: IO[bytes] | None) -> ExportedModel:
    """Have a child export it. What it prints goes to `complaints`, or nowhere."""
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra("torch", extra="torch", wanted_for="exporting a module")
    reader, writer = os.pipe()
    child = subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "flatout.infer.exporting.worker"),
            *(str(writer), msgspec.json.encode(order).decode()),
        ],
        stdin=subprocess.DEVNULL,
        stdout=complaints or subprocess.DEVNULL,
        stderr=complaints or subprocess.PIPE,
        pass_fds=(writer,),
        start_new_session=True,
    )
    os.close(writer)
    last = _Last(child.stderr)
    try:
        with os.fdopen(reader, "rb") as events:
            for line in events:
                event = msgspec.json.decode(line)
                if event["event"] == "stage":
                    on_stage(event["name"], _place(event["name"]), len(_STAGES))
                elif event["event"] == "failed":
                    raise _error(event)
                else:
                    return msgspec.convert(event["made"], ExportedModel)
        raise _died(child.wait(), last.words())
    finally:
        end_child(child)


def _place(name: str) -> int:
    return next((at for at, stage in enumerate(_STAGES) if name.startswith(stage)), 0)


def _error(event: dict[str, Any]) -> FlatoutError:
    parts: dict[str, str] = {"expected": event["expected"], "remedy": event["remedy"]}
    kinds: dict[int, type[FlatoutError]] = {EXIT_CALLER: CallerMistake, EXIT_JOB: JobFailed}
    return kinds.get(event["exit_code"], EnvironmentProblem)(event["received"], **parts)


def _died(code: int, words: str) -> ChildFailed:
    how = f"died of signal {-code}" if code < 0 else f"ended with {code}"
    return ChildFailed(
        f"the process that exports {how}" + (f": {words}" if words else ""),
        expected="a package, or a reason",
        remedy="the same with --debug, which shows what it prints; memory may have run out",
    )


class _Last:
    """The end of what a child complains about: read all along, so that a full pipe never blocks it."""

    def __init__(self, pipe: IO[bytes] | None) -> None:
        self._pipe = pipe
        self._tail = b""
        self._reader = threading.Thread(target=self._drain, daemon=True)
        self._reader.start()

    def _drain(self) -> None:
        for chunk in self._pipe or ():
            self._tail = (self._tail + chunk)[-4096:]

    def words(self) -> str:
        """Its last line."""
        self._reader.join(timeout=1)
        lines = self._tail.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""
