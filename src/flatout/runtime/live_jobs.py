"""Reads how jobs are doing: of those that run on this machine, and of folders that somebody named."""

import contextlib
import dataclasses
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from flatout.records.codec import decode
from flatout.records.errors import FlatoutError
from flatout.records.live import LIVE_FILE, LIVE_KIND, LIVE_STALE_S, LIVE_VERSION, LiveJob
from flatout.records.lock import is_locked
from flatout.records.processes import JobHere

# In folders that are named, jobs that are over are still given for a while; longer where nobody said so.
ENDED_FOR_S = 600.0
GONE_FOR_S = 3600.0
# A job that was started again is written anew; younger than this, whoever wrote it has hardly gone.
_FRESH_S = 6.0
_REMEDY = "nothing: it is written anew while the job runs"


def live_jobs(
    jobs: Sequence[JobHere] = (),
    roots: Sequence[Path] = (),
    *,
    notice: Callable[[str], None] = lambda _text: None,
) -> list[LiveJob]:
    """How each of them is doing, oldest first. Never raises: what cannot be read is noticed and left out.

    `roots` are `.flatout` folders. A job whose writer is gone or silent is "stalled", with the reason.
    """
    now_unix_s = time.time()
    found: dict[Path, LiveJob] = {}
    for folder in (Path(job.run_folder) for job in jobs if job.run_folder):
        _read(folder / LIVE_FILE, found, now_unix_s, notice)
    for path in (path for root in roots for path in _recent(root, now_unix_s, notice)):
        _read(path, found, now_unix_s, notice)
    return sorted(found.values(), key=lambda job: (job.started_at_unix_s, job.run))


def _recent(root: Path, now_unix_s: float, notice: Callable[[str], None]) -> Iterator[Path]:
    """The files below a folder that have changed of late: thousands of older runs cost one look each."""
    try:
        for path in sorted((root / "runs").glob(f"*/{LIVE_FILE}")):
            with contextlib.suppress(OSError):
                if now_unix_s - path.stat().st_mtime <= GONE_FOR_S:
                    yield path
    except OSError as error:
        notice(f"{root} cannot be read: {error.strerror}")


def _read(path: Path, found: dict[Path, LiveJob], now_unix_s: float, notice: Callable[[str], None]) -> None:
    try:
        key = path.resolve()
        if key in found:
            return
        data = path.read_bytes()
        job = decode(data, path, LIVE_KIND, LIVE_VERSION, LiveJob, remedy=_REMEDY)
        told = as_of_now(job, path.parent, now_unix_s)
    except FileNotFoundError:
        return  # not written yet, or deleted meanwhile
    except FlatoutError as error:
        notice(f"left out: {error.received}")
    except (OSError, ValueError, psutil.Error) as error:
        notice(f"left out: {path} cannot be read ({error})")
    else:
        if told.state != "ended" or now_unix_s - told.written_at_unix_s <= ENDED_FOR_S:
            found[key] = told


def as_of_now(job: LiveJob, folder: Path, now_unix_s: float) -> LiveJob:
    """The job as it can be told now: "stalled", with the reason, where its writer is gone or silent."""
    silent_s = now_unix_s - job.written_at_unix_s
    if job.state == "ended" or silent_s <= _FRESH_S:
        return job
    # A run folder is locked for as long as its `flatout run` lives; processes of other machines are not ours
    # to see, nor always those of other containers.
    if job.host == platform.node() and not _is_alive(job) and not is_locked(folder):
        return _stalled(job, f"whoever wrote this is gone, {silent_s:.0f} s ago: flatout run was killed")
    if silent_s > LIVE_STALE_S:
        return _stalled(job, f"no news for {silent_s:.0f} s: flatout run is stopped, or its disk is")
    return job


def _stalled(job: LiveJob, why: str) -> LiveJob:
    return dataclasses.replace(job, state="stalled", state_reason=why)


def _is_alive(job: LiveJob) -> bool:
    """Whether the process that wrote this still runs; another one may have its number by now."""
    try:
        process = psutil.Process(job.pid)
        return (
            process.status() != psutil.STATUS_ZOMBIE and process.create_time() <= job.started_at_unix_s + 1.0
        )
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
