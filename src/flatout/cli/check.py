"""`flatout check`."""

from typing import Any

import click

from flatout.cli.commands import COMMANDS
from flatout.cli.jobs import JOB_SETTINGS, job_argument, job_options, request_for
from flatout.cli.options import Output, common_options, new_run


@click.command("check", short_help=COMMANDS["check"].purpose, context_settings=JOB_SETTINGS)
@job_argument
@click.option("--steps", type=click.IntRange(min=1), default=5, show_default=True, help="Updates to look at.")
@click.option("--seed", type=int, help="The seed that both runs get. Default: 1234.")
@job_options
@common_options
def command(output: Output, words: tuple[str, ...], steps: int, seed: int | None, **job: Any) -> int:
    """A new script's first minute: does it learn, and is it ready to run?

    Runs the script twice for a few updates, seeded alike, and looks at shapes, dtypes and devices, the loss,
    gradients that do or don't reach each parameter, the loader, determinism and memory. Nothing that it
    writes reaches your files. Exits with 1 when something is wrong.

    \b
    Examples:
      flatout check train.py
      flatout check --steps 10 train.py --lr 3e-4
      flatout check --cpu train.py
      flatout check -- torchrun --nproc-per-node 2 train.py
      flatout check --json train.py | jq '.checks[] | select(.status == "fail")'
    """
    from flatout.records.errors import EXIT_DONE, EXIT_FINDING
    from flatout.report.check import draw_check
    from flatout.runtime.checking import check_job

    request = request_for(words, steps=steps, seed=seed, **job)
    with new_run(output, "check") as folder, output.progress("starting the script") as progress:
        report = check_job(request, folder.manifest.id, folder.path, progress)
        folder.write("check", 1, report)
    if output.as_json:
        output.document("check", 1, report)
    else:
        draw_check(report, output.console())
    return EXIT_FINDING if report.failed else EXIT_DONE
