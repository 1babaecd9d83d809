"""`flatout export`."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flatout.cli.commands import COMMANDS
from flatout.cli.options import Duration, Output, common_options
from flatout.monitor.export.address import DEFAULT_LISTEN

if TYPE_CHECKING:
    from flatout.monitor.export.exporter import Exporter
    from flatout.monitor.export.running import ExportRequest

_FILE = click.Path(path_type=Path, dir_okay=False)
_FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command("export", short_help=COMMANDS["export"].purpose)
@click.option("--listen", metavar="HOST:PORT", help=f"Where to serve /metrics.  [default: {DEFAULT_LISTEN}]")
@click.option("--runs", type=_FOLDER, multiple=True, metavar="DIR", help="Jobs of this .flatout folder, too.")
@click.option("--once", is_flag=True, help="Print the metrics once and end.")
@click.option("--textfile", type=_FOLDER, metavar="DIR", help="Write flatout.prom there, for node_exporter.")
@click.option("--otlp", metavar="URL", help="Push to an OpenTelemetry collector; needs flatout[otel].")
@click.option("--tls-cert", type=_FILE, metavar="FILE", help="Serve over TLS with this certificate.")
@click.option("--tls-key", type=_FILE, metavar="FILE", help="The certificate's key.")
@click.option(
    "--token-file",
    type=_FILE,
    metavar="FILE",
    help="Answer only to this bearer token; --otlp sends it to the collector, too.",
)
@click.option("--dcgm-names", is_flag=True, help="The names of NVIDIA's dcgm-exporter beside our own.")
@click.option(
    "--every",
    type=click.FloatRange(0.2, 10.0),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often GPUs are looked at.",
)
@click.option(
    "--push-every",
    type=Duration(),
    default=15.0,
    metavar="TIME",
    help="How often --textfile and --otlp get news.  [default: 15s]",
)
@click.option(
    "--max-jobs",
    type=click.IntRange(1, 10_000),
    default=64,
    show_default=True,
    help="No more jobs than this; what is left out is counted.",
)
@click.option(
    "--max-ranks",
    type=click.IntRange(1, 100_000),
    default=256,
    show_default=True,
    help="No more ranks of a job than this.",
)
@click.option(
    "--files",
    type=_FOLDER,
    metavar="DIR",
    help="Write dashboards, alerts, unit and manifests there, and end.",
)
@click.option("--force", is_flag=True, help="With --files: overwrite those that were changed.")
@common_options
def command(output: Output, files: Path | None, force: bool, once: bool, **options: Any) -> int:
    """Metrics of this machine's GPUs and jobs for Prometheus.

    Serves /metrics (OpenMetrics, or plain text) and /health: every GPU, and every job that runs under
    `flatout run` and that this user may see. A scrape reads the newest look and never touches a device. What
    is not known is absent. Only this machine can read it unless --listen says otherwise. Grafana dashboards,
    alert rules, a systemd unit and Kubernetes manifests come with it.

    \b
    Examples:
      flatout export
      flatout export --once
      flatout export --listen 0.0.0.0:19838 --token-file token --tls-cert cert.pem --tls-key key.pem
      flatout export --textfile /var/lib/prometheus/node-exporter
      flatout export --runs ~alice/project/.flatout --runs ~bob/work/.flatout
      flatout export --files monitoring
    """
    from flatout.records.errors import EXIT_DONE

    if files is not None:
        return _write_files(output, files, force=force)
    request = _request(**options)
    _export(output, request, once=once)
    return EXIT_DONE


def _write_files(output: Output, folder: Path, *, force: bool) -> int:
    from flatout.monitor.export.shipped import write_shipped
    from flatout.records.errors import EXIT_DONE
    from flatout.records.exporting import ExportedFiles

    written = write_shipped(folder, force=force)
    if output.as_json:
        names = tuple(str(path.relative_to(folder)) for path in written)
        output.document("export", 1, ExportedFiles(folder=str(folder), files=names))
    else:
        for path in written:
            click.echo(path)
    return EXIT_DONE


def _request(
    *,
    listen: str | None,
    runs: tuple[Path, ...],
    textfile: Path | None,
    otlp: str | None,
    every: float,
    push_every: float,
    dcgm_names: bool,
    max_jobs: int,
    max_ranks: int,
    **secure: Path | None,
) -> "ExportRequest":
    from flatout.monitor.export.address import parse_address
    from flatout.monitor.export.labels import LabelLimits
    from flatout.monitor.export.running import ExportRequest
    from flatout.monitor.export.server import security_from
    from flatout.records.errors import CallerMistake

    for folder in runs:
        if not folder.is_dir():
            raise CallerMistake(
                f"--runs {folder} is not there",
                expected="a .flatout folder, as `flatout run` leaves it where a job was started",
                remedy=f"ls -d {shlex.quote(str(folder.parent / '.flatout'))}",
            )
    if textfile is not None and not textfile.is_dir():
        raise CallerMistake(
            f"--textfile {textfile} is not there",
            expected="the folder that node_exporter reads: its --collector.textfile.directory",
            remedy=f"mkdir -p {shlex.quote(str(textfile))}   # or check the path",
        )
    # Who asks for another way does not get a port beside it, unless that is asked for, too.
    served = listen or (None if textfile or otlp else DEFAULT_LISTEN)
    return ExportRequest(
        address=parse_address(served) if served else None,
        security=security_from(**secure),
        every_s=every,
        push_every_s=push_every,
        roots=runs,
        textfile=textfile,
        otlp_url=otlp or "",
        dcgm_names=dcgm_names,
        limits=LabelLimits(jobs=max_jobs, ranks=max_ranks),
    )


def _export(output: Output, request: "ExportRequest", *, once: bool) -> None:
    from flatout.monitor.export.running import (
        FIRST_LOOK_S,
        exporter_for,
        run_export,
        run_once,
        sent_in_the_clear,
    )
    from flatout.monitor.sampling import MachineSampler
    from flatout.records.exporting import ExportStarted

    def say(started: ExportStarted) -> None:
        if output.as_json:
            output.document("export", 1, started)
            sys.stdout.flush()
            return
        for warning in started.warnings:
            output.notice(f"warning: {warning}")
        for place in (started.url, started.textfile, started.otlp_url):
            if place:
                output.notice(f"exporting to {place}" if place != started.url else f"serving {place}")

    with MachineSampler(every_s=request.every_s, roots=request.roots) as sampler:
        exporter = exporter_for(request, sampler.frame, sampler.failures)
        if once:
            for warning in sent_in_the_clear(request.otlp_url, request.security):
                output.notice(f"warning: {warning}")
            with output.progress("looking at this machine"):
                # Some figures are of the time between two samples.
                sampler.wait_until_complete(FIRST_LOOK_S, samples=2)
            run_once(request, exporter)
            _print_once(output, exporter, kept=request.textfile is not None or bool(request.otlp_url))
            return
        run_export(request, exporter, on_ready=say, on_trouble=output.notice)


def _print_once(output: Output, exporter: "Exporter", *, kept: bool) -> None:
    """Programs get their document always; people, where the metrics went nowhere else."""
    from flatout.monitor.export.exporter import as_record

    if output.as_json:
        output.document("export", 1, as_record(exporter.collect()))
    elif not kept:
        click.echo(exporter.answer("plain").decode(), nl=False)
