"""`flatout trace`."""

from pathlib import Path

import click

from flatout.cli.commands import COMMANDS
from flatout.cli.options import Output, common_options, leave_page, page_option


@click.command("trace", short_help=COMMANDS["trace"].purpose)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--top", type=click.IntRange(min=1), default=8, show_default=True, help="Rows of each table.")
@page_option
@common_options
def command(output: Output, files: tuple[Path, ...], top: int, html: Path | None) -> int:
    """Where the time went and what holds it up, from traces that exist already.

    Reads what torch.profiler writes (Chrome's JSON, plain or gzip), of any size, and what Nsight Systems
    exports (nsys export --type sqlite); several files are several ranks. Steps are those that profiler.step()
    marks, or NVTX ranges "step N"; without marks, times are of the whole trace. What Nsight Compute prints
    (ncu --csv) is shown beside them: what each kernel keeps busy, and what binds it.

    \b
    Examples:
      flatout trace trace.json
      flatout trace log/*.pt.trace.json.gz
      flatout trace report.sqlite kernels.csv
      flatout trace --html trace.html trace.json
      flatout trace --json trace.json | jq .waterfall
    """
    import dataclasses

    from flatout.analyze.trace.summary import summarize
    from flatout.diagnose.of_traces import with_findings
    from flatout.records.errors import EXIT_DONE
    from flatout.report.trace import draw_trace
    from flatout.report.trace_page import trace_page

    with output.progress("reading") as progress:
        found = summarize(
            list(files), on_read=lambda done, whole: progress("reading", done // 2**20, whole // 2**20)
        )
    found = with_findings(found)
    if html is not None:
        found = dataclasses.replace(found, report=str(html))
    if output.as_json:
        output.document("trace", 1, found)
    else:
        draw_trace(found, output.console(), top=top)
    if html is not None:
        leave_page(output, html, trace_page(found))
    return EXIT_DONE
