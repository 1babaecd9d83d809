"""`flatout report`."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from flatout.cli.commands import COMMANDS
from flatout.cli.options import Output, common_options
from flatout.records.places import PROJECT_FOLDER


@click.command("report", short_help=COMMANDS["report"].purpose)
@click.argument("run", required=False)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, readable=False),
    default=Path(PROJECT_FOLDER),
    show_default=True,
    help="Where the runs are.",
)
@common_options
def command(output: Output, run: str | None, folder: Path) -> None:
    """List saved runs, or read one again, on any machine.

    RUN is a run's id, the beginning of one, "latest", or the path of a run folder. Needs neither torch nor
    a GPU: copy a run folder from the cluster and read it on a laptop.

    \b
    Examples:
      flatout report
      flatout report latest
      flatout report 20261115-031500-limits-4f2a9c
      flatout report ~/from-cluster/20261115-031500-limits-4f2a9c --json
    """
    from flatout.records.autopsy import Autopsy
    from flatout.records.batch import BatchSizes
    from flatout.records.check import CheckReport
    from flatout.records.errors import CallerMistake
    from flatout.records.fit import Fit
    from flatout.records.index import RunIndex, status_of
    from flatout.records.limits import Limits
    from flatout.records.machine import DoctorReport
    from flatout.records.profile import Profile
    from flatout.records.running import JobRun
    from flatout.records.runs import find_run
    from flatout.records.trace import TraceSummary
    from flatout.records.tuning import Tuning
    from flatout.report.autopsy import draw_autopsy
    from flatout.report.batch import draw_batch
    from flatout.report.check import draw_check
    from flatout.report.doctor import draw_doctor
    from flatout.report.fit import draw_fit
    from flatout.report.limits import draw_limits
    from flatout.report.profile import draw_profile
    from flatout.report.running import draw_run
    from flatout.report.runs import draw_run_header, draw_runs
    from flatout.report.trace import draw_trace
    from flatout.report.tuning import draw_tuning

    if folder != Path(PROJECT_FOLDER) and not folder.is_dir():
        raise CallerMistake(
            f"no folder {str(folder)!r}", expected="the .flatout folder of a project", remedy="check the path"
        )
    if run is None:
        entries = RunIndex(folder, notice=output.notice).entries()
        if output.as_json:
            output.document("runs", 1, {"runs": entries})
        else:
            draw_runs(entries, output.console(), folder=str(folder))
        return
    found = find_run(folder, run)
    status = status_of(found)
    if output.as_json:
        manifest = {**dataclasses.asdict(found.manifest), "status": status}
        output.document("report", 1, {"run": manifest, "documents": found.plain_documents()})
        return
    console = output.console()
    draw_run_header(found.manifest, status, console)
    drawers: dict[str, tuple[Any, Callable[[Any, Any], None]]] = {
        "doctor": (DoctorReport, lambda report, to: draw_doctor(report, to, problems_only=False)),
        "limits": (Limits, draw_limits),
        "profile": (Profile, draw_profile),
        "trace": (TraceSummary, draw_trace),
        "check": (CheckReport, draw_check),
        "tune": (Tuning, draw_tuning),
        "job": (JobRun, draw_run),
        "fit": (Fit, draw_fit),
        "batch": (BatchSizes, draw_batch),
        "autopsy": (Autopsy, draw_autopsy),
    }
    for name in found.manifest.documents:
        if name in drawers:
            record, draw = drawers[name]
            draw(found.read(name, 1, record), console)
