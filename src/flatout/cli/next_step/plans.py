"""The plan of a folder: which job it is for, and whether that is still what it was."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from flatout.cli.next_step.past_runs import PastRun
from flatout.records.errors import FlatoutError
from flatout.records.next_step import MachineHere, PlanHere
from flatout.records.places import DEFAULT_PLAN
from flatout.records.plan import Fingerprint, Plan, read_plan
from flatout.runtime.command import JobCommand, job_command
from flatout.tune.fingerprints import fingerprint


def plan_here(folder: Path, runs: Iterable[PastRun], machine: MachineHere) -> PlanHere | None:
    """The plan, or None where there is none."""
    path = folder / DEFAULT_PLAN
    if not path.is_file():
        return None
    try:
        plan = read_plan(path)
    except FlatoutError as error:
        return PlanHere(path=DEFAULT_PLAN, state="unreadable", differences=(error.received,))
    words = _words(plan, runs)
    job = JobCommand(words=(), own_python=True, given=words).typed() if words else ""
    differences = _differences(plan, words, machine)
    return PlanHere(
        path=DEFAULT_PLAN,
        state="stale" if differences else "fresh",
        job=job if not _is_gone(words) else "",
        speedup=plan.speedup,
        levers=tuple(choice.words() for choice in plan.levers),
        differences=differences,
    )


def _words(plan: Plan, runs: Iterable[PastRun]) -> tuple[str, ...]:
    """The job as it was tuned; by the plan's own word where that run is gone: without its launcher."""
    tuned = next((run.words for run in runs if run.folder.manifest.id == plan.run and run.words), ())
    return tuned or ((plan.job.script, *plan.job.arguments) if plan.job.script_sha256 else ())


def _is_gone(words: tuple[str, ...]) -> bool:
    return bool(words) and words[0].endswith((".py", ".sh", ".bash")) and not Path(words[0]).is_file()


def _differences(plan: Plan, words: tuple[str, ...], machine: MachineHere) -> tuple[str, ...]:
    if _is_gone(words):
        return (f"its script {words[0]} is not here",)
    try:
        now = fingerprint(job_command(words), None, {}) if words else plan.job
    except (FlatoutError, OSError):
        return ()  # a launcher that is not on this path; whether it is the same job, nobody knows
    # Which Flatout made it does not matter: what it measured is of the job and the machine.
    now = dataclasses.replace(
        now, device=_device(plan.job, machine), torch=_torch(plan.job, machine), flatout=plan.job.flatout
    )
    return tuple(plan.job.differences(now))


def _device(job: Fingerprint, machine: MachineHere) -> str:
    """The device that the job would find here; one on the CPU finds it everywhere."""
    names = [gpu.name for gpu in machine.gpus]
    if job.device in ("", "cpu", *names) or machine.problems:
        return job.device
    return names[0] if names else "cpu"


def _torch(job: Fingerprint, machine: MachineHere) -> str:
    """As the plan writes it where it is the same: a package does not always name its build."""
    now = machine.torch or ""
    return job.torch if now.partition("+")[0] == job.torch.partition("+")[0] else now
