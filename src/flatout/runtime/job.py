"""A job: what to run and what to leave behind, and the first process of it."""

import contextlib
import dataclasses
import json
import os
import signal
from pathlib import Path
from typing import Any, NoReturn

from flatout.records.session import KEEPER_VARIABLE
from flatout.runtime import linux
from flatout.runtime.shield import ShieldRequest


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """An order to a keeper."""

    command: tuple[str, ...]
    cwd: str
    # All of it: nothing is inherited.
    environment: dict[str, str]
    # Files to append to.
    stdout: str
    stderr: str
    # A text that no other job has, by which `processes.end_job_of` knows this one's processes.
    mark: str
    shield: ShieldRequest | None = None
    # Folders to make at first, by the keeper, who is there to delete them whatever happens to Flatout.
    make: tuple[str, ...] = ()
    # Folders to delete at the end.
    cleanup: tuple[str, ...] = ()

    def line(self) -> bytes:
        """The job as a keeper reads it."""
        return json.dumps(dataclasses.asdict(self), default=str).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> "Job":
        """Read what `line` wrote."""
        plain: dict[str, Any] = json.loads(line)
        if not plain["command"]:
            raise ValueError("the command is empty")
        shield = plain.get("shield")
        if shield is not None:
            keep = tuple(Path(path) for path in shield["keep"])
            plain["shield"] = ShieldRequest(scratch=Path(shield["scratch"]), keep=keep)
        lists = {name: tuple(plain.get(name, ())) for name in ("command", "make", "cleanup")}
        return cls(**{**plain, **lists})


def keeper_value(keeper_pid: int, mark: str) -> str:
    """What KEEPER_VARIABLE holds in every process of a job."""
    return f"{keeper_pid}:{mark}"


def open_outputs(job: Job) -> list[int]:
    """The files that take what the job says. Opened before a shield is up, for they are to stay."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    return [os.open(path, flags, 0o644) for path in (job.stdout, job.stderr)]


def start(job: Job, outputs: list[int]) -> int:
    """Start the main process and return its pid, or raise what kept it from starting."""
    failure, tell_failure = os.pipe()
    keeper = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become(job, outputs, tell_failure, keeper)
    os.close(tell_failure)
    with os.fdopen(failure, "rb") as told:
        # The start of the command closes the other end, so this does not wait for more than that.
        reason = told.read().decode(errors="replace")
    for output in outputs:
        os.close(output)
    if reason:
        os.waitpid(pid, 0)
        raise OSError(reason)
    return pid


def _become(job: Job, outputs: list[int], tell_failure: int, keeper: int) -> NoReturn:
    try:
        os.setsid()
        with contextlib.suppress(OSError):
            linux.die_with_parent(signal.SIGKILL)
        if os.getppid() == keeper:  # else it died before it could take us with it
            _reset_signals()
            for target, source in enumerate((os.open(os.devnull, os.O_RDONLY), *outputs)):
                os.dup2(source, target)
            environment = {**job.environment, KEEPER_VARIABLE: keeper_value(keeper, job.mark)}
            os.execvpe(job.command[0], job.command, environment)  # noqa: S606
    except BaseException as error:  # noqa: BLE001 -- nothing of ours may go on in the job's process
        reason = (error.strerror if isinstance(error, OSError) else None) or repr(error)
        os.write(tell_failure, f"{job.command[0]}: {reason}".encode())
    finally:
        os._exit(127)


def _reset_signals() -> None:
    for number in signal.valid_signals():
        # Handlers end with the start of a program, but what is ignored would stay ignored.
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
