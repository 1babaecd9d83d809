"""What every page has in common: how templates are found, and how text of others is kept harmless."""

import functools
from typing import Any

import jinja2

from flatout.records.words import (
    byte_rate,
    duration,
    flop_rate,
    memory_size,
    percent,
    three_digits,
)
from flatout.report.charts import short
from flatout.report.figures import calls, milliseconds, number, times
from flatout.report.kernels import short_name
from flatout.report.plain import inert


@functools.cache
def environment() -> jinja2.Environment:
    """Templates in which all text is escaped, and nothing missing passes for empty; compiled once."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("flatout.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_harmless,
    )
    made.filters.update(
        byte_rate=byte_rate,
        calls=calls,
        cut=cut,
        duration=duration,
        flop_rate=flop_rate,
        memory_size=memory_size,
        milliseconds=milliseconds,
        number=number,
        percent=percent,
        short=short,
        short_name=short_name,
        three_digits=three_digits,
        times=times,
    )
    return made


def cut(text: str, most: int) -> str:
    """So much of a text; names of others can be as long as they like."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _harmless(value: Any) -> Any:
    """Control characters of others as escapes; what jinja has made itself stays."""
    return inert(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
