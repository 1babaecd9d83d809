"""Ends a job that somebody chose in a view, after making sure that it is still the one that was shown."""

from collections.abc import Callable

from flatout.records.errors import FlatoutError
from flatout.records.watched import JobRow
from flatout.runtime.jobs_here import jobs_in
from flatout.runtime.process_table import read_table
from flatout.runtime.stopping_jobs import Stage, end_all
from flatout.runtime.targets import Target, targets_for

# Two looks at when one process was started differ by less.
_SAME_START_S = 2.0


def stop_shown_job(row: JobRow, grace_s: float, tell: Callable[[str], None]) -> str:
    """Ask it to save, wait, end what is left of its tree; what became of it, in a sentence."""
    if row.pid is None or row.job is None:
        return "it does not run on this machine"
    table = read_table()
    process = table.get(row.pid)
    # Processes are looked at now and then: the shown one was started then, or earlier, and never later.
    latest = None if row.job.age_s is None else row.now_unix_s - row.job.age_s + _SAME_START_S
    if process is None or (latest is not None and process.started_unix_s > latest):
        return f"{row.name} has ended already"
    try:
        targets = targets_for([str(row.pid)], table, jobs_in(table, holders={row.pid}))

        def stage(_target: Target, now: Stage) -> None:
            tell(f"{row.name}: {now.what}")

        [stopped] = end_all(targets, grace_s, stage)
    except FlatoutError as error:
        return f"{error.received}; {error.remedy}"
    left = [one.pid for one in stopped.processes if not one.gone]
    return f"{row.name} has ended" if not left else f"{row.name}: {len(left)} processes are still there"
