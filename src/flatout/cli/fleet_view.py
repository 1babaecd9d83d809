"""The fleet as a live view: looks again and again, and outlives a server that does not."""

import itertools
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from flatout.records.errors import EnvironmentProblem
from flatout.records.words import age
from flatout.report.fleet import fleet_screen

if TYPE_CHECKING:
    from rich.console import Console

    from flatout.cli.options import Output
    from flatout.records.fleet import Fleet


# Servers learn something new every fifteen seconds or so.
_LEAST_S = 5.0


def show_fleet(output: "Output", url: str, every_s: float, *, once: bool) -> None:
    """As `flatout watch --fleet` does: live, or one look."""
    from flatout.monitor.fleet.reading import read_fleet
    from flatout.report.fleet import draw_fleet

    if output.as_json:
        output.document("fleet", 1, read_fleet(url))
    elif once:
        draw_fleet(read_fleet(url), output.console())
    else:
        watch_fleet(lambda: read_fleet(url), output.console(), max(every_s, _LEAST_S))


def watch_fleet(
    look: "Callable[[], Fleet]", console: "Console", every_s: float, *, looks: int | None = None
) -> None:
    """Draw what `look` sees every `every_s` seconds until Ctrl-C, or so many times.

    The first look may fail: then there is nothing to show, and the error is the caller's.
    """
    from rich.live import Live

    views = itertools.islice(_views(look, every_s), looks)
    first = next(views)
    if not console.is_terminal:  # into a pipe: one screen after the other
        for seen, problem in itertools.chain([first], views):
            console.print(fleet_screen(seen, width=console.width, height=40, problem=problem))
            console.print()
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for seen, problem in itertools.chain([first], views):
            live.update(
                fleet_screen(seen, width=console.width, height=console.height, problem=problem), refresh=True
            )


def _views(look: "Callable[[], Fleet]", every_s: float) -> "Iterator[tuple[Fleet, str]]":
    """What was seen last, and since when nothing was where the server does not answer."""
    seen, seen_at = look(), time.monotonic()
    yield seen, ""
    while True:
        time.sleep(every_s)
        try:
            seen, seen_at, problem = look(), time.monotonic(), ""
        except EnvironmentProblem as error:
            problem = f"{error.received} ({age(time.monotonic() - seen_at)} ago was the last answer)"
        yield seen, problem
