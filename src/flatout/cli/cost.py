"""`flatout cost`."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flatout.cli.commands import COMMANDS
from flatout.cli.options import Output, common_options
from flatout.records.places import PROJECT_FOLDER

if TYPE_CHECKING:
    from flatout.records.runs import RunFolder


@click.command("cost", short_help=COMMANDS["cost"].purpose)
@click.argument("run", required=False)
@click.option("--all", "everything", is_flag=True, help="Every run of the folder, and their sum.")
@click.option(
    "--usd-per-hour",
    type=click.FloatRange(min=0.0, min_open=True, max=100_000.0),
    metavar="USD",
    help="What you pay for one GPU for an hour; else the price table's (FLATOUT_PRICES).",
)
@click.option(
    "--epoch-samples",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="How many samples an epoch has, where no whole one was seen yet.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, readable=False),
    default=Path(PROJECT_FOLDER),
    show_default=True,
    help="Where the runs are.",
)
@common_options
def command(
    output: Output,
    run: str | None,
    everything: bool,
    usd_per_hour: float | None,
    epoch_samples: int | None,
    folder: Path,
) -> int:
    """Dollars a step, a token, an epoch, and GPU hours paid and not used.

    Of a job under `flatout run`, while it runs and afterwards. RUN is a run's id or the beginning of one, or
    the path of a run folder; without it, the newest job. Every GPU is paid for from the start of the job to
    its end: hours that did not go into steps are told by cause. Needs neither torch nor a GPU.

    \b
    Examples:
      flatout cost
      flatout cost --usd-per-hour 2.10
      flatout cost 20261115-031500-run-4f2a9c --json
      flatout cost --all
    """
    from flatout.records.errors import EXIT_DONE, CallerMistake
    from flatout.records.runs import find_run
    from flatout.report.cost import draw_cost
    from flatout.tune.costing import run_cost, together

    if run is not None and everything:
        raise CallerMistake(
            "--all with a run", expected="one run, or all of them", remedy="flatout cost --all"
        )
    if run is not None:
        found = [find_run(folder, run)]
    else:
        found = list(itertools.islice(_jobs_in(folder, output), None if everything else 1))
        if not found:
            raise CallerMistake(
                f"no job was run yet in {folder}",
                expected="the folder of a project in which `flatout run` was used",
                remedy="flatout run train.py   # or --folder",
            )
    report = together([run_cost(one, own_usd=usd_per_hour, epoch_samples=epoch_samples) for one in found])
    if output.as_json:
        output.document("cost", 1, report)
    else:
        draw_cost(report, output.console())
    return EXIT_DONE


def _jobs_in(folder: Path, output: Output) -> Iterator["RunFolder"]:
    """Jobs under `flatout run`, the newest first; what cannot be read is noticed."""
    from flatout.records.errors import FlatoutError
    from flatout.records.runs import RunFolder, runs_under

    for path in runs_under(folder):
        try:
            one = RunFolder.open(path)
        except FlatoutError as error:
            output.notice(f"left out: {error.received}")
            continue
        if one.manifest.command == "run":
            yield one
