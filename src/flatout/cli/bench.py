"""`flatout bench`."""

from pathlib import Path

import click

from flatout.cli.commands import COMMANDS
from flatout.cli.options import Duration, Output, common_options, leave_page, page_option


def _numbers(_context: click.Context, _option: click.Parameter, value: str) -> tuple[float, ...]:
    try:
        found = tuple(float(word) for word in value.replace(",", " ").split())
    except ValueError:
        found = (0.0,)
    if not all(0 < one < float("inf") for one in found):
        raise click.BadParameter("numbers above 0 with commas between them, such as 1,8,32")
    return found


@click.command("bench", short_help=COMMANDS["bench"].purpose)
@click.argument("url")
@click.option(
    "--payload",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="What is sent (.json, .npy, .safetensors); default: the example of the server's /openapi.json.",
)
@click.option(
    "--rate",
    "rates",
    default="",
    callback=_numbers,
    metavar="RATES",
    help="Requests a second, at random moments.",
)
@click.option(
    "--concurrency",
    default="",
    callback=_numbers,
    metavar="COUNTS",
    help="So many at a time; default: 1, 2, 4, ...",
)
@click.option("--duration", type=Duration(), default="5s", show_default=True, help="Of each load.")
@click.option("--timeout", type=Duration(), default="60s", show_default=True, help="Of a request.")
@click.option("--token", envvar="FLATOUT_SERVE_TOKEN", default="", help="For authorization: Bearer.")
@page_option
@common_options
def command(
    output: Output,
    url: str,
    payload: Path | None,
    rates: tuple[float, ...],
    concurrency: tuple[float, ...],
    duration: float,
    timeout: float,
    token: str,
    html: Path | None,
) -> int:
    """Load a server: latency, throughput, and where its knee is.

    Without --rate, so many requests at a time as bring more answers: 1, 2, 4 and on, until more load brings
    nothing but waiting. With --rate, requests come at random moments whether or not earlier ones are
    answered, and times count from when a request was due: a server that stands still does not look fast.
    Streams of tokens (a payload with "stream": true) give the time to the first token and tokens a second.
    Exit code 1: some requests of the smallest load failed.

    \b
    Examples:
      flatout bench http://localhost:8000
      flatout bench http://localhost:8000 --rate 50,100,200 --duration 30s --html load.html
      flatout bench http://localhost:8000/v1/completions --payload prompt.json --concurrency 1,8,32
      flatout bench --json http://localhost:8000 | jq .points[].latency_ms.p99
    """
    import importlib.util

    from flatout.records.errors import EXIT_DONE, EXIT_FINDING, CallerMistake, MissingExtra
    from flatout.report.bench import draw_bench

    if rates and concurrency:
        raise CallerMistake("--rate and --concurrency", expected="one of both", remedy="leave one out")
    if importlib.util.find_spec("httptools") is None:
        raise MissingExtra("httptools", extra="serve", wanted_for="flatout bench")
    from flatout.infer.bench.running import BenchRequest, run_bench

    request = BenchRequest(
        url=url,
        payload=payload,
        token=token,
        rates=rates,
        concurrencies=tuple(max(1, round(one)) for one in concurrency),
        seconds=duration,
        timeout_s=timeout,
    )
    with output.progress("asking the server") as progress:
        found = run_bench(request, progress)
    if output.as_json:
        output.document("bench", 1, found)
    else:
        draw_bench(found, output.console())
    if html is not None:
        from flatout.report.bench_page import bench_page

        leave_page(output, html, bench_page(found))
    lightest = found.points[0]
    unsent = [f"{one.load:g}" for one in found.points if not one.sent]
    if unsent:
        what = "requests a second" if rates else "at a time"
        output.notice(f"nothing was sent with {', '.join(unsent)} {what}: a longer --duration is needed")
    return EXIT_DONE if lightest.sent and lightest.answered == lightest.sent else EXIT_FINDING
