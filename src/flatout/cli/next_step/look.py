"""Puts the look together: the machine, the folder, its runs and its plan; then what to do."""

import dataclasses
from pathlib import Path

from flatout.cli.next_step.advice import Here, suggestions
from flatout.cli.next_step.machine import MachineLook
from flatout.cli.next_step.past_runs import PastRun, checkpoint_of, past_runs, told
from flatout.cli.next_step.plans import plan_here
from flatout.cli.next_step.scripts import scripts_in
from flatout.records.live import LiveJob
from flatout.records.next_step import NextStep, RunHere
from flatout.records.places import PROJECT_FOLDER
from flatout.records.runs import runs_under
from flatout.records.words import duration
from flatout.runtime.live_jobs import live_jobs


def look_here(look: MachineLook | None = None) -> NextStep:
    """At the machine and the working folder."""
    look = MachineLook() if look is None else look
    notes: list[str] = []
    folder, root = Path(), Path(PROJECT_FOLDER)
    scripts = scripts_in(folder)
    runs = tuple(past_runs(root, notes))
    machine = look.result()
    running = tuple(_running(root, runs))
    checkpoint = next((found for run in runs if (found := checkpoint_of(run, root)) is not None), None)
    last = told(runs[0]) if runs else None
    plan = plan_here(folder, runs, machine)
    here = Here(
        machine=machine,
        scripts=scripts.found,
        model=scripts.model,
        plan=plan,
        runs=runs,
        last=last,
        running=running,
        checkpoint=checkpoint,
    )
    first, *others = suggestions(here)
    return NextStep(
        machine=machine,
        folder=_name_of_this_folder(),
        suggestion=first,
        others=tuple(others),
        scripts=scripts.found,
        plan=plan,
        runs=sum(1 for _ in runs_under(root)),
        last_run=last,
        running=running,
        checkpoint=checkpoint,
        notes=(*scripts.notes, *notes),
    )


def _running(root: Path, runs: tuple[PastRun, ...]) -> list[RunHere]:
    """Runs under way, with how far they are where they tell; one whose Flatout was killed tells no more."""
    found = [told(run) for run in runs if run.status in ("running", "orphaned")]
    if not found:
        return []
    live = {job.run: job for job in live_jobs(roots=(root,))}
    orphaned = {run.folder.manifest.id for run in runs if run.status == "orphaned"}
    return [
        dataclasses.replace(run, about=_how_it_is_doing(live[run.id]))
        if run.id in live and run.id not in orphaned
        else run
        for run in found
    ]


def _how_it_is_doing(job: LiveJob) -> str:
    pace = f", {duration(job.step_s)} a step" if job.step_s else ""
    reason = f": {job.state_reason}" if job.state_reason else ""
    return f"{job.state}, {job.updates} updates{pace}{reason}"


def _name_of_this_folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # deleted under our feet
        return "(deleted)"
