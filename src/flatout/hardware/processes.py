"""Who is behind a PID that a driver reported: a name, a user and an age, or why they are unknown.

A driver may report PIDs of another namespace (the host's, seen from a container) or nonsense. A PID whose
process does not hold the device open is therefore not taken to be the one meant.
"""

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import psutil

from flatout.records.device import DeviceProcess

PID_MAX = 1 << 22
_STRANGER = "unknown process: the PID is of another namespace, or the process has ended"
_GONE = "unknown process: there is none of this PID any more"
_MAY_BE_ELSEWHERE = "its PID may be of another namespace"
# The number that Linux gives to the namespace of the machine itself.
_WHOLE_MACHINE = "pid:[4026531836]"


def describe_process(
    pid: int,
    *,
    kind: Literal["compute", "graphics", "unknown"],
    memory_bytes: int | None,
    memory_reason: str = "the driver does not say how much memory this process holds",
    active_share: float | None = None,
    activity_reason: str = "the driver does not tell the activity of single processes",
    device_paths: Sequence[str],
) -> DeviceProcess:
    """A record of the process `pid`, with what the operating system tells about it."""
    unknown = {} if memory_bytes is not None else {"memory_bytes": memory_reason}
    unknown |= {} if active_share is not None else {"active_share": activity_reason}
    known = DeviceProcess(
        pid=pid, kind=kind, memory_bytes=memory_bytes, active_share=active_share, unknown=unknown
    )
    if not 0 < pid <= PID_MAX:
        return _stranger(known, f"{pid} is not a possible PID")
    if is_gone(pid):
        return dataclasses.replace(_stranger(known, _GONE), gone=True)
    if _holds(pid, device_paths) is False:
        return _stranger(known, _STRANGER)
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            return dataclasses.replace(
                known,
                name=process.name(),
                user=process.username(),
                age_s=max(0.0, time.time() - process.create_time()),
                gone=False,
            )
    except (psutil.Error, KeyError, ValueError):
        return _stranger(known, _STRANGER)


def is_gone(pid: int) -> bool:
    """Whether this process certainly has ended: only the machine's own namespace shows every PID."""
    return _sees_every_process() and not Path(f"/proc/{pid}").exists()


def _sees_every_process() -> bool:
    if sys.platform != "linux":
        return False
    try:
        # The first process is another user's: where it is hidden, so are others.
        return os.readlink("/proc/self/ns/pid") == _WHOLE_MACHINE and Path("/proc/1").exists()  # noqa: PTH115
    except OSError:
        return False


def _stranger(known: DeviceProcess, reason: str) -> DeviceProcess:
    reasons = {"name": reason, "user": reason, "age_s": reason, "gone": _MAY_BE_ELSEWHERE}
    return dataclasses.replace(known, unknown={**known.unknown, **reasons})


def _holds(pid: int, device_paths: Sequence[str]) -> bool | None:
    """Whether the process has one of the device files open; None where that cannot be seen."""
    try:
        entries = list(Path(f"/proc/{pid}/fd").iterdir())
    except FileNotFoundError:
        return False if Path("/proc/self").exists() else None
    except OSError:
        return None
    targets = []
    for entry in entries:
        # A file that was closed since; in our own process, the listing itself is one.
        with contextlib.suppress(FileNotFoundError):
            try:
                targets.append(str(entry.readlink()))
            except PermissionError:
                return None
    return any(target.startswith(tuple(device_paths)) for target in targets)
