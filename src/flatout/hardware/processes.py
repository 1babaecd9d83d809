"""Who is behind a PID that a driver reported: a name, a user and an age, or why they are unknown.

A driver may report PIDs of another namespace (the host's, seen from a container) or nonsense. A PID whose
process does not hold the device open is therefore not taken to be the one meant.
"""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import psutil

from flatout.records.device import DeviceProcess

PID_MAX = 1 << 22
_STRANGER = "unknown process: the PID is of another namespace, or the process has ended"


def describe_process(
    pid: int,
    *,
    kind: Literal["compute", "graphics", "unknown"],
    memory_bytes: int | None,
    memory_reason: str = "the driver does not say how much memory this process holds",
    device_paths: Sequence[str],
) -> DeviceProcess:
    """A record of the process `pid`, with what the operating system tells about it."""
    unknown = {} if memory_bytes is not None else {"memory_bytes": memory_reason}
    if not 0 < pid <= PID_MAX:
        return _stranger(pid, kind, memory_bytes, unknown, f"{pid} is not a possible PID")
    if _holds(pid, device_paths) is False:
        return _stranger(pid, kind, memory_bytes, unknown, _STRANGER)
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            return DeviceProcess(
                pid=pid,
                kind=kind,
                memory_bytes=memory_bytes,
                name=process.name(),
                user=process.username(),
                age_s=max(0.0, time.time() - process.create_time()),
                unknown=unknown,
            )
    except (psutil.Error, KeyError, ValueError):
        return _stranger(pid, kind, memory_bytes, unknown, _STRANGER)


def _stranger(
    pid: int,
    kind: Literal["compute", "graphics", "unknown"],
    memory_bytes: int | None,
    unknown: dict[str, str],
    reason: str,
) -> DeviceProcess:
    reasons = {**unknown, "name": reason, "user": reason, "age_s": reason}
    return DeviceProcess(pid=pid, kind=kind, memory_bytes=memory_bytes, unknown=reasons)


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
