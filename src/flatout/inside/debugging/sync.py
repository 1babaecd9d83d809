"""Lines that make the host wait for the device."""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from flatout.inside.debugging.switch import Switch
from flatout.levers.places import is_users_file

# How torch's warning begins.
_MESSAGE = "called a synchronizing CUDA operation"


class Sync(Switch):
    """Each line of the script that synchronizes is named once, also where torch does it further down."""

    name = "sync"
    shows = "each line of yours that makes the host wait for the GPU, once (torch misses some)"
    cost = "a warning for each wait: little, unless there are thousands a step"
    needs_cuda = True
    against = ("debug-modes",)

    def __init__(self, torch: Any, folder: Callable[[], Path]) -> None:
        super().__init__(torch, folder)
        self._before: Any = None
        self._named: set[tuple[str, int]] = set()
        self._filter: Any = None

    def turn_on(self) -> None:
        """With the first use of the device."""
        self.at_first_use(self._begin)

    def turn_off(self) -> None:
        """As it was found."""
        if self._before is None:
            return
        self.torch.cuda.set_sync_debug_mode(self._before)
        self.stop_listening()

    def _begin(self) -> None:
        self._before = self.torch.cuda.get_sync_debug_mode()
        self.torch.cuda.set_sync_debug_mode("warn")
        self.listen()

    def listen(self) -> None:
        """Every such warning, also of a line that has warned before: who called is what counts."""
        warnings.filterwarnings("always", message=_MESSAGE)
        self._filter = warnings.filters[0]
        self._show = warnings.showwarning
        warnings.showwarning = self._told

    def stop_listening(self) -> None:
        """Leave warnings as they were."""
        if warnings.showwarning == self._told:
            warnings.showwarning = self._show
        if self._filter in warnings.filters:
            warnings.filters.remove(self._filter)  # type: ignore[attr-defined]

    def _told(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not str(message).startswith(_MESSAGE):
            self._show(message, category, filename, lineno, file, line)
            return
        place = self._users_line() or (filename, lineno)
        if place not in self._named:
            self._named.add(place)
            sys.stderr.write(f"flatout: {place[0]}:{place[1]} makes the host wait for the device\n")

    def _users_line(self) -> tuple[str, int] | None:
        """The nearest line of the script's own: neither Python's, nor torch's, nor of what is installed."""
        torchs = self.torch.__file__.rpartition("__init__")[0]
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
        while frame is not None:
            file = frame.f_code.co_filename
            if is_users_file(file) and not file.startswith(torchs):
                return file, frame.f_lineno
            frame = frame.f_back
        return None
