"""`flatout fleet`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from flatout.cli.commands import COMMANDS
from flatout.cli.options import Duration, Output, common_options, leave_page, page_option
from flatout.records.errors import EXIT_DONE, EXIT_FINDING, CallerMistake

if TYPE_CHECKING:
    from collections.abc import Callable

    from flatout.records.fleet import Fleet

URL_VARIABLE = "FLATOUT_PROMETHEUS_URL"


@click.command("fleet", short_help=COMMANDS["fleet"].purpose)
@click.option("--url", required=True, envvar=URL_VARIABLE, show_envvar=True, help="The Prometheus server.")
@click.option("--over", type=Duration(), default="24h", show_default=True, help="The window to look back on.")
@click.option("--job", default="", help="One job alone: a run's id or its beginning, or a part of its name.")
@click.option(
    "--where", multiple=True, metavar="LABEL=VALUE", help="Only series with this label, such as cluster=a."
)
@click.option("--watch", "every_s", type=Duration(), metavar="SECONDS", help="Look again so often.")
@click.option("--all", "-a", "everything", is_flag=True, help="Every machine, action and GPU.")
@page_option
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Holds the bearer token; a name and password come from the environment.",
)
@click.option(
    "--ca-file", type=click.Path(path_type=Path, dir_okay=False), help="The authority that signed for it."
)
@click.option(
    "--timeout", type=Duration(), default="30s", show_default=True, help="How long an answer may take."
)
@common_options
def command(
    output: Output,
    url: str,
    over: float,
    job: str,
    where: tuple[str, ...],
    every_s: float | None,
    everything: bool,
    html: Path | None,
    token_file: Path | None,
    ca_file: Path | None,
    timeout: float,
) -> int:
    """All machines at a glance: idle, broken, throttled, and what it costs.

    Asks a Prometheus server that scrapes `flatout export` on many machines; machines with dcgm-exporter alone
    are shown as far as that tells. Changes nothing. A name and a password are taken from
    FLATOUT_PROMETHEUS_USER and FLATOUT_PROMETHEUS_PASSWORD.

    \b
    Examples:
      flatout fleet --url http://prometheus:9090
      flatout fleet --url http://prometheus:9090 --over 7d --html fleet.html
      flatout fleet --url http://prometheus:9090 --job train.py
      flatout fleet --url https://prometheus.example --token-file ~/.token --watch 10
      flatout fleet --url http://prometheus:9090 --json | jq '.actions[] | [.machine, .command]'

    Exits with 1 when a GPU is broken, a machine out of reach or a job stands still.
    """
    from flatout.monitor.fleet.reading import read_fleet
    from flatout.report.fleet import draw_fleet

    _insist(output, every_s, html)

    def look() -> "Fleet":
        return read_fleet(
            url,
            over_s=over,
            job=job,
            where=where,
            all_devices=everything or html is not None,
            token_file=token_file,
            ca_file=ca_file,
            timeout_s=timeout,
        )

    if every_s is not None:
        return _watched(output, look, every_s)
    with output.progress("asking Prometheus"):
        fleet = look()
    if output.as_json:
        output.document("fleet", 1, fleet)
    else:
        draw_fleet(fleet, output.console(), everything=everything)
    if html is not None:
        from flatout.report.fleet_page import fleet_page

        leave_page(output, html, fleet_page(fleet))
    return EXIT_FINDING if fleet.is_urgent else EXIT_DONE


def _insist(output: Output, every_s: float | None, html: Path | None) -> None:
    if every_s is not None and (output.as_json or html is not None):
        raise CallerMistake(
            "--watch with --json or --html",
            expected="a view that is drawn again and again, or one document",
            remedy="leave one of them out",
        )


def _watched(output: Output, look: "Callable[[], Fleet]", every_s: float) -> int:
    """Until Ctrl-C; a server that goes away leaves the last view, and the time since."""
    from flatout.cli.fleet_view import watch_fleet

    watch_fleet(look, output.console(), every_s)
    return EXIT_DONE
