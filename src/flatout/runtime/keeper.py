"""The small process between Flatout and a job: whichever of them dies, and how, no process of the job stays.

`python -P -m flatout.runtime.keeper` reads one line from its standard input, a `Job` as JSON, and starts it.
Its input is a pipe that Flatout holds open: when that closes, by intent or because Flatout is gone,
everything is killed. Its standard output tells what happens, one JSON object a line:

    {"event": "shield", "kind": "overlay" | "none", "reason", "protected", "read_only"}
    {"event": "started", "pid"}
    {"event": "failed", "reason"}
    {"event": "ended", "exit_code", "signal", "killed", "left", "not_removed"}

`shield` comes where one was asked for; of kind "none", it ends the matter, as does `failed`. `killed` lists
the processes that outlived the job's main one, `left` the pids of those that could not even be killed.
Standard library alone, and one thread: both are needed to enter a namespace, and to start quickly.
"""

import contextlib
import dataclasses
import json
import os
import sys
import time
from pathlib import Path

from flatout.runtime import linux
from flatout.runtime.family import Family
from flatout.runtime.job import Job, open_outputs, start
from flatout.runtime.mounts import is_within
from flatout.runtime.scratch import Doomed, hold
from flatout.runtime.shield import ShieldUnavailable, raise_shield, uncover_scratch
from flatout.runtime.wishes import Wishes

EXIT_NO_SHIELD = 3
EXIT_NOT_STARTED = 4

# What ends by itself after the main process, as loader workers do, gets this long.
_GRACE_S = 1.0
_KILL_WITHIN_S = 10.0
_OUTPUT = 1


def main() -> int:
    """Keep one job from its start to its end."""
    wishes = Wishes()
    line = wishes.first_line()
    if line is None:
        return EXIT_NOT_STARTED
    try:
        job = Job.from_line(line)
    except (ValueError, TypeError, KeyError) as error:
        _tell("failed", reason=f"the order cannot be read: {error!r}")
        return EXIT_NOT_STARTED
    doomed: list[Doomed] = []
    try:
        for path in job.make:
            Path(path).mkdir(mode=0o700)
        # Held now, because a shield may cover their paths.
        doomed = [folder for path in job.cleanup if (folder := hold(Path(path)))]
        family = _started(job, wishes)
    except ShieldUnavailable as error:
        _remove(job, doomed)
        _tell("shield", kind="none", reason=error.reason, protected=[], read_only=[])
        return EXIT_NO_SHIELD
    except OSError as error:
        _remove(job, doomed)
        _tell("failed", reason=str(error))
        return EXIT_NOT_STARTED
    _tell("started", pid=family.main)
    _see_to_the_end(family, wishes)
    if job.shield is not None:
        uncover_scratch(job.shield)
    not_removed = _remove(job, doomed)
    ended = {"exit_code": family.exit_code, "signal": family.signal}
    _tell("ended", **ended, killed=family.killed, left=family.left, not_removed=not_removed)
    return 0


def _started(job: Job, wishes: Wishes) -> Family:
    with contextlib.suppress(
        OSError
    ):  # where this call is missing, a job is known by its process group alone
        linux.become_subreaper()
    outputs = open_outputs(job)
    if job.shield is not None:
        home = job.environment.get("HOME")
        shield = raise_shield(job.shield, folder=Path(job.cwd), home=Path(home) if home else None)
        _tell("shield", reason="", **dataclasses.asdict(shield))
    try:
        # By path, and after the shield: the folder that we came from lies under it.
        os.chdir(job.cwd)
        wishes.wait(0)
        if wishes.end:
            raise OSError("it was ended before it was started")
        return Family(start(job, outputs))
    except OSError:
        if job.shield is not None:
            uncover_scratch(job.shield)
        raise


def _see_to_the_end(family: Family, wishes: Wishes) -> None:
    while family.reap() and not family.main_ended and not wishes.end:
        wishes.wait(None)
    deadline = time.monotonic() + _GRACE_S
    while family.reap() and not wishes.end and time.monotonic() < deadline:
        wishes.wait(deadline - time.monotonic())
    deadline = time.monotonic() + _KILL_WITHIN_S
    while family.reap() and time.monotonic() < deadline:
        family.kill()
        wishes.wait(0.01)


def _remove(job: Job, doomed: list[Doomed]) -> list[str]:
    """Delete the folders that are to go, and return those that could not be, or hold what is to be kept.

    A folder that is kept for the job and is itself among those to go, goes.
    """
    going = {folder.path for folder in doomed}
    keep = job.shield.keep if job.shield else ()
    kept = [path for path in map(os.path.realpath, keep) if path not in going]
    return [
        folder.path
        for folder in doomed
        if any(is_within(path, folder.path) for path in kept) or not folder.remove()
    ]


def _tell(event: str, **facts: object) -> None:
    line = json.dumps({"event": event, **facts}).encode() + b"\n"
    # Nobody may be listening any more; that must not keep us from ending the job.
    with contextlib.suppress(OSError):
        while line:
            line = line[os.write(_OUTPUT, line) :]


if __name__ == "__main__":
    sys.exit(main())
