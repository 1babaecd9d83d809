"""`flatout stop`."""

from typing import TYPE_CHECKING

import click

from flatout.cli.commands import COMMANDS
from flatout.cli.options import Duration, Output, Step, common_options
from flatout.records.errors import EXIT_DONE, EXIT_FINDING, CallerMistake

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from flatout.records.stopping import StoppedJob
    from flatout.runtime.targets import Target


@click.command("stop", short_help=COMMANDS["stop"].purpose)
@click.argument("names", nargs=-1, metavar="[JOB|PID]...")
@click.option(
    "--grace",
    type=Duration(or_none=True),
    default="60s",
    show_default=True,
    metavar="TIME",
    help="How long a job may take to save and end by itself.",
)
@click.option("--orphans", is_flag=True, help="End what dead jobs left behind, and nothing else.")
@click.option("--dry-run", is_flag=True, help="Show who would be signalled and why; touch nothing.")
@common_options
def command(output: Output, names: tuple[str, ...], grace: float, orphans: bool, dry_run: bool) -> int:
    """End a job without losing its work.

    Asks it to save (SIGTERM to the script or its launcher, as you would), waits, then ends what is left of
    its own tree and nothing else, and verifies that the processes are gone and that the GPU's memory came
    back. With flatout.Checkpointer or flatout.stop_requested the job saves between two steps.

    JOB is a name that `flatout ps` shows: a script, or a run's id or its beginning. A pid is taken at its
    word: the job that it heads, or else that process and everything below it. Refused are the first process,
    this command and those that it runs in, other users' processes, and names that fit several jobs.

    \b
    Examples:
      flatout stop train.py
      flatout stop 4242 --grace 5m
      flatout stop 4242 --dry-run
      flatout stop --orphans --dry-run
      flatout stop --orphans

    Exits with 0 when all is gone, 1 when something is not, 2 when nothing fits or it is refused, 3 when this
    machine's processes cannot be seen.
    """
    from flatout.hardware.machine import default_sources
    from flatout.records.stopping import Stops
    from flatout.report.stop import draw_stops
    from flatout.runtime.memory_back import look_at_memory, memory_back
    from flatout.runtime.stopping_jobs import would_send

    _insist_on_a_wish(names, orphans)
    sources = default_sources()
    try:
        with output.progress("looking at this machine") as step:
            before = look_at_memory(sources)
            targets = _targets(names, orphans, {pid for held in before for pid in held.pids})
            if dry_run:
                stops = Stops(
                    jobs=tuple(would_send(target, grace) for target in targets),
                    devices=(),
                    dry_run=True,
                    ended=None,
                )
            else:
                jobs = _ended(output, targets, grace, step)
                step("waiting for the memory to come back", 0, 0)
                pids = {process.pid for job in jobs for process in job.processes}
                devices = memory_back(sources, before, pids)
                gone = all(process.gone for job in jobs for process in job.processes)
                back = not any(device.held_after_bytes for device in devices)
                stops = Stops(jobs=jobs, devices=devices, dry_run=False, ended=gone and back)
    finally:
        for source in sources:
            source.close()
    if output.as_json:
        output.document("stop", 1, stops)
    else:
        draw_stops(stops, output.console())
    return EXIT_FINDING if stops.ended is False else EXIT_DONE


def _insist_on_a_wish(names: "Sequence[str]", orphans: bool) -> None:
    if not names and not orphans:
        raise CallerMistake(
            "no job was named",
            expected="a job's name or pid, or --orphans",
            remedy="flatout ps   # lists the jobs that run here",
        )


def _targets(names: "Sequence[str]", orphans: bool, on_gpus: "Collection[int]") -> "list[Target]":
    from flatout.runtime.jobs_here import jobs_in
    from flatout.runtime.process_table import read_table
    from flatout.runtime.targets import orphans_among, targets_for

    table = read_table()
    # What is no Python is known by its pid alone, GPU or not.
    holders = {pid for pid in on_gpus if (one := table.get(pid)) is not None and one.is_python}
    jobs = jobs_in(table, holders=holders)
    if not orphans:
        return targets_for(names, table, jobs)
    found = orphans_among(jobs, table, names)
    if not found:
        raise CallerMistake(
            "nothing was left behind" + (f" by {', '.join(names)}" if names else ""),
            expected="a process that is certain to be an orphan",
            remedy="flatout ps   # lists what runs here",
        )
    return found


def _ended(output: Output, targets: "Sequence[Target]", grace: float, step: Step) -> "tuple[StoppedJob, ...]":
    from flatout.runtime.stopping_jobs import Stage, end_all

    def tell(target: "Target", stage: Stage) -> None:
        step(f"{target.name}: {stage.what}", int(10 * stage.gone_s), int(10 * stage.most_s))

    try:
        return end_all(targets, grace, tell)
    except KeyboardInterrupt:
        output.notice("what was asked to save still does; `flatout ps` shows whether it has ended")
        raise
