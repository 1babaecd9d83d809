"""`flatout batch`."""

from pathlib import Path
from typing import Any

import click

from flatout.cli.commands import COMMANDS
from flatout.cli.jobs import JOB_SETTINGS, job_argument, job_options, request_for
from flatout.cli.options import Output, Size, common_options, new_run


@click.command("batch", short_help=COMMANDS["batch"].purpose, context_settings=JOB_SETTINGS)
@job_argument
@click.option("--plan", "plan_path", default=None, metavar="FILE", help="Under the levers of this plan.")
@click.option(
    "--max-memory", type=Size(of_memory=True), metavar="SIZE", help="Into this much, such as 40GiB."
)
@click.option(
    "--headroom",
    type=click.FloatRange(0.0, 0.9),
    default=0.1,
    show_default=True,
    help="The share of the memory that must stay free: batches are not all alike.",
)
@click.option("--most", type=click.IntRange(min=1), metavar="SIZE", help="No batch larger than this.")
@job_options
@common_options
def command(
    output: Output,
    words: tuple[str, ...],
    plan_path: str | None,
    max_memory: int | None,
    headroom: float,
    most: int | None,
    **job: Any,
) -> int:
    """The batch size at the knee of throughput.

    Runs the unmodified script with batches of a few sizes, by its own option or its DataLoader's, and finds
    the smallest that is nearly as fast as the fastest and leaves some memory free. Two sizes tell where the
    knee should be; every size that is named was run, for more than one update. Nothing that the script writes
    reaches your files. A larger batch changes the training: what that means is said.

    \b
    Examples:
      flatout batch train.py --batch-size 32
      flatout batch --max-memory 40GiB train.py
      flatout batch --plan flatout.toml train.py
      flatout batch --json train.py | jq .best
    """
    from flatout.records.errors import EXIT_DONE
    from flatout.records.plan import read_plan
    from flatout.report.batch import draw_batch
    from flatout.tune.batch_job import batch_job
    from flatout.tune.request import TuneRequest

    levers = read_plan(Path(plan_path)).levers if plan_path is not None else ()
    levers = tuple(choice for choice in levers if choice.id != "batch-size")
    request = TuneRequest(job=request_for(words, **job), max_memory_bytes=max_memory)
    with new_run(output, "batch") as folder, output.progress("starting the script") as progress:
        found = batch_job(
            request, folder.manifest.id, folder.path, progress, levers=levers, headroom=headroom, most=most
        )
        folder.write("batch", 1, found)
    if output.as_json:
        output.document("batch", 1, found)
    else:
        draw_batch(found, output.console())
    return EXIT_DONE
