"""`with flatout.observe():` for notebooks and libraries: taps around some code, and its profile after."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from flatout.inside.armed import armed_session
from flatout.records.places import PROJECT_FOLDER
from flatout.runtime.observing import Observation, Observing

__all__ = ["Observation", "observe"]


@contextlib.contextmanager
def observe(*, folder: str | Path = PROJECT_FOLDER, show: bool = True) -> Iterator[Observation]:
    """Watch the training steps in this block, and print what they cost.

    Changes nothing that the code does: it writes its own files, and errors pass through. Everything that was
    put in place is taken off at the end. What was seen is kept in `folder`/runs.
    """
    if armed_session() is not None:
        yield Observation(reason="this process is watched already")
        return
    with Observing(Path(folder)) as observing:
        yield observing.seen
    if show:
        _show(observing.seen)


def _show(seen: Observation) -> None:
    from rich.console import Console

    from flatout.report.profile import draw_profile

    console = Console(highlight=False, markup=False, emoji=False)
    if seen.profile is None:
        console.print(f"flatout: {seen.reason}")
    else:
        draw_profile(seen.profile, console)
