"""The collector tap: pauses of Python's garbage collector. They lie inside the other parts of a step."""

import _thread
import gc
from typing import TYPE_CHECKING

from flatout.inside.tap import clock

if TYPE_CHECKING:
    from flatout.inside.session import Session


class CollectorTap:
    """Logs each collection."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._started_ns = 0

    def install(self) -> None:
        """Ask the collector to tell."""
        gc.callbacks.append(self._note)

    def remove(self) -> None:
        """Ask it no longer."""
        if self._note in gc.callbacks:
            gc.callbacks.remove(self._note)

    def _note(self, phase: str, _info: dict[str, int]) -> None:
        try:
            if phase == "start":
                self._started_ns = clock()
            elif self._started_ns:
                self._session.log.add(("collector", self._started_ns, clock()))
        except KeyboardInterrupt:
            # Python drops whatever is raised here: a Ctrl-C that came just now must reach the script.
            _thread.interrupt_main()
