"""`flatout fit`."""

from typing import Any

import click

from flatout.cli.commands import COMMANDS
from flatout.cli.jobs import JOB_SETTINGS, job_argument, job_options, new_run, request_for
from flatout.cli.options import Output, common_options


@click.command("fit", short_help=COMMANDS["fit"].purpose, context_settings=JOB_SETTINGS)
@job_argument
@click.option(
    "--gpu", "gpus", default="", metavar="NAMES", help="GPUs of `flatout gpus`, with commas between them."
)
@job_options
@common_options
def command(output: Output, words: tuple[str, ...], gpus: str, **job: Any) -> int:
    """Will it fit, and on which GPUs; no GPU needed.

    Runs the unmodified training script for a few updates on tensors that have no memory, notes whatever they
    would take and give back, and puts that through a model of torch's allocator. Nothing is computed, so
    losses are made up; compiled code counts as written. Nothing that the script writes reaches your files.

    \b
    Examples:
      flatout fit train.py --batch-size 32
      flatout fit --gpu l4,rtx4090,h100-80gb-sxm train.py
      flatout fit --json train.py | jq .reserved_bytes
    """
    from flatout.memory.fit import fit_job
    from flatout.records.errors import EXIT_DONE
    from flatout.report.fit import draw_fit

    request = request_for(words, **job)
    names = gpus.replace(",", " ").split()
    with new_run(output, "fit") as folder, output.progress("imagining a GPU") as progress:
        found = fit_job(request, folder.manifest.id, folder.path, names, progress)
        folder.write("fit", 1, found)
    if output.as_json:
        output.document("fit", 1, found)
    else:
        draw_fit(found, output.console())
    return EXIT_DONE
