"""The runs that were made in this folder: which job each was of, and how it went."""

import contextlib
import dataclasses
import importlib
import itertools
import shlex
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from flatout.cli.caring import Ranks
from flatout.cli.commands import COMMANDS
from flatout.records.autopsy import Autopsy
from flatout.records.check import CheckReport
from flatout.records.errors import FlatoutError
from flatout.records.index import status_of
from flatout.records.next_step import CheckpointHere, RunHere, RunOutcome
from flatout.records.running import JobRun
from flatout.records.runs import RunFolder, runs_under
from flatout.records.tuning import ENDED_BY_CTRL_C, Tuning
from flatout.records.words import age
from flatout.runtime.checkpoint.store import checkpoints
from flatout.runtime.command import JobCommand, job_command
from flatout.runtime.jobs_here import Job, jobs_in
from flatout.runtime.outliving import outliving
from flatout.runtime.process_table import read_table
from flatout.runtime.protecting import Refuge
from flatout.tune.fingerprints import fingerprint, script_of
from flatout.tune.journal import COMPARISONS_FILE, insist_on_the_same_job

# Newest runs that are looked through: a project may have thousands.
_AT_MOST = 30
# Commands that run a job: what follows their options is the job's own.
JOB_COMMANDS = ("check", "profile", "tune", "run", "fit", "batch")


@dataclasses.dataclass(frozen=True)
class PastRun:
    """A run of a job, with the words that it was started with."""

    folder: RunFolder
    # As `status_of` has it; "orphaned" where the job outlived its Flatout.
    status: str
    # Flatout's own options, then the job as `job_command` takes it; and how it is really started, where
    # options ask for several processes.
    options: tuple[str, ...]
    words: tuple[str, ...]
    started: tuple[str, ...]

    @property
    def command(self) -> str:
        """Such as `tune`."""
        return self.folder.manifest.command

    @property
    def script(self) -> Path | None:
        """Where it still is what it was called."""
        found = script_of(self.words)[0]
        return found.resolve() if found is not None else None

    def job(self) -> str:
        """The job as one would type it after a command."""
        return JobCommand(words=(), own_python=True, given=self.words).typed() if self.words else ""

    def again(self, **changed: str | None) -> str:
        """The same command as it was typed, with these options of Flatout's changed, or left out (None)."""
        names = {f"--{name.replace('_', '-')}": value for name, value in changed.items()}
        kept, options = [], iter(self.options)
        for option in options:
            name, _, joined = option.partition("=")
            if name in names:
                if names[name] and not joined:
                    next(options, "")  # its former value
            elif name not in ("--", "-m", "--module"):
                kept.append(option)
        new = [word for name, value in names.items() if value is not None for word in (name, value) if word]
        return " ".join(filter(None, (f"flatout {self.command}", shlex.join((*new, *kept)), self.job())))


def past_runs(root: Path, notes: list[str]) -> Iterator[PastRun]:
    """Runs of jobs, the newest first; what cannot be read is noted."""
    jobs: list[Job] | None = None
    for path in itertools.islice(runs_under(root), _AT_MOST):
        try:
            folder = RunFolder.open(path)
            status = status_of(folder)
        except FlatoutError as error:
            notes.append(f"left out: {error.received}")
            continue
        if folder.manifest.command in JOB_COMMANDS:
            if status == "died":
                jobs = jobs_in(read_table()) if jobs is None else jobs
                status = "died" if outliving(folder.path, jobs) is None else "orphaned"
            yield past_run(folder, status)


def past_run(folder: RunFolder, status: str = "done") -> PastRun:
    """A run of a job, with the words of its command line told apart."""
    return PastRun(folder, status, *_taken_apart(folder.manifest.command, folder.manifest.arguments))


def _taken_apart(name: str, arguments: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The options of a command of ours, the words of the job behind them, and those that it starts."""
    if not arguments or arguments[0] != name:
        return (), (), ()
    command: click.Command = importlib.import_module(COMMANDS[name].module).command
    given = list(arguments[1:])
    try:
        found = command.make_context(name, list(given), resilient_parsing=True).params
    except click.ClickException:
        return (), (), ()
    words = tuple(found.get("words") or ())
    options = tuple(given[: len(given) - len(words)])
    as_module = bool(found.get("as_module"))
    job = ("-m", *words) if words and as_module else words
    ranks = Ranks(**{field.name: found.get(field.name) for field in dataclasses.fields(Ranks)})
    spread = ranks.command(words, as_module=as_module)
    return options, job, ("-m", *spread) if spread is not None else job


def told(run: PastRun) -> RunHere:
    """How it went, in a sentence."""
    manifest = run.folder.manifest
    try:
        outcome, about = _outcome(run)
    except FlatoutError as error:
        outcome, about = "failed", error.received
    return RunHere(
        id=manifest.id,
        command=manifest.command,
        created_at=manifest.created_at.isoformat(timespec="seconds"),
        outcome=outcome,
        about=about,
        job=run.job(),
    )


def _outcome(run: PastRun) -> tuple[RunOutcome, str]:
    documents = run.folder.manifest.documents
    if run.status == "running":
        return "running", "it is running"
    if run.status == "orphaned":
        return "running", "it runs on, though its Flatout was killed"
    if "job" in documents:
        return _outcome_of_a_job(run.folder)
    if run.command == "tune" and (why := why_resumable(run)):
        return "interrupted", why
    if run.status == "died":
        return "killed", "it was killed before it could end"
    if run.status == "failed":
        return "failed", "it ended in an error"
    if "check" in documents and run.folder.read("check", 1, CheckReport).failed:
        return "failed", "something must be mended before a real run"
    if "tune" in documents:
        return "done", run.folder.read("tune", 1, Tuning).summary
    return "done", "it is done"


def _outcome_of_a_job(folder: RunFolder) -> tuple[RunOutcome, str]:
    job = folder.read("job", 1, JobRun)
    after = f"after {job.steps} updates" if job.steps is not None else f"after {age(job.took_s)}"
    if job.exit_code == 0:
        return "done", f"it ended well {after}"
    if "autopsy" in folder.manifest.documents:
        found = folder.read("autopsy", 1, Autopsy).found
        held = " on the GPU" if found.on_gpu else ""
        return "out of memory", f"it ran out of memory{held} after {found.updates} updates"
    if job.not_finite is not None:
        return "not finite", f"it was stopped {after}: its loss or gradients were not finite"
    if job.ended_by_us:
        return "hung", f"it was ended {after}: {job.ended_by_us}"
    if job.asked is not None or job.signal in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        return "stopped", f"it was stopped {after}"
    if job.signal is not None:
        return "killed", f"signal {job.signal} ended it {after}"
    if job.exit_code is None:
        return "killed", f"it was killed {after}"
    return "failed", f"it failed with exit code {job.exit_code} {after}"


def why_resumable(run: PastRun) -> str:
    """What a tuning has that another one could go on from; empty where there is nothing."""
    if not (run.folder.path / COMPARISONS_FILE).is_file():
        return ""
    if run.status in ("failed", "died"):
        return "it was interrupted, and what it compared is kept"
    if "tune" in run.folder.manifest.documents:
        tuning = run.folder.read("tune", 1, Tuning)
        if tuning.plan is None and any(trial.reason == ENDED_BY_CTRL_C for trial in tuning.trials):
            return "Ctrl-C ended it before anything was found, and what it compared is kept"
    return ""


def is_still_the_same_job(run: PastRun) -> bool:
    """Whether `--resume` would take it: the script is what it was."""
    with contextlib.suppress(FlatoutError, OSError):
        insist_on_the_same_job(run.folder.path, fingerprint(job_command(run.words), None, {}))
        return True
    return False


def checkpoint_of(run: PastRun, root: Path) -> CheckpointHere | None:
    """What a protected job has saved, where it has not ended well since."""
    if "--protect" not in run.options or not run.words:
        return None
    with contextlib.suppress(FlatoutError, OSError):
        command = job_command(run.started)
        now = fingerprint(command, None, {})
        refuge = Refuge(root, command, now.script, now.script_sha256)
        saved = checkpoints(refuge.path)
        if saved:
            same = refuge.is_of_the_same_script()
            command_line = run.again(fresh=None if same else "")
            return CheckpointHere(
                update=saved[0].step, folder=str(refuge.path), command=command_line, same_script=same
            )
    return None
