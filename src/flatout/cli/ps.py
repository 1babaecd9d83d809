"""`flatout ps`."""

import click

from flatout.cli.commands import COMMANDS
from flatout.cli.options import Output, common_options


@click.command("ps", short_help=COMMANDS["ps"].purpose)
@click.option(
    "--all", "-a", "everything", is_flag=True, help="Every process of each job, workers one by one."
)
@common_options
def command(output: Output, everything: bool) -> int:
    """Who holds each GPU, and which training jobs run here.

    A job is a tree: launcher, ranks, loader workers, compile workers. States: running, idle (does nothing
    while we look), orphan (whoever it worked for is gone), zombie (ended, and still listed or still holding
    memory), unknown (with the reason). What cannot be seen from here, such as processes of another container,
    is said to be unknown. Without a GPU, the jobs are listed all the same. Changes nothing.

    \b
    Examples:
      flatout ps
      flatout ps --all
      flatout ps --json | jq '.devices[].processes[]? | select(.state == "orphan")'
      flatout ps --json | jq '.jobs[] | {name, pid, state}'
    """
    from flatout.hardware.machine import default_sources
    from flatout.records.errors import EXIT_DONE
    from flatout.report.ps import draw_ps
    from flatout.runtime.who_holds import look_around

    sources = default_sources()
    try:
        with output.progress("looking at this machine"):
            found, _, _ = look_around(sources)
    finally:
        for source in sources:
            source.close()
    if output.as_json:
        output.document("ps", 1, found)
    else:
        draw_ps(found, output.console(), everything=everything)
    return EXIT_DONE
