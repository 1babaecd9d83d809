"""`trace` as one offline page: the waterfall, kernels, operators and waits of traces alone."""

from flatout.records.trace import TraceSummary
from flatout.report.page import cut, environment
from flatout.report.step_picture import trace_picture
from flatout.report.trace import trace_headlines

_LONG_HEADLINE = 150


def trace_page(summary: TraceSummary) -> str:
    """One self-contained HTML page: no script, no network, light and dark."""
    said = [cut(line, 400) for line in trace_headlines(summary)]
    name = "a step" if summary.step_ms is not None else "the whole trace"
    return (
        environment()
        .get_template("trace.html.j2")
        .render(
            trace=summary,
            # Whoever wrote the trace chose the names of these files: none of them is opened.
            findings=[(one, [(place, ()) for place in one.where]) for one in summary.findings],
            headline=said[-1],
            is_long=len(said[-1]) > _LONG_HEADLINE,
            about=said[:-1],
            step=trace_picture(summary.waterfall, name),
        )
    )
