"""What every debug switch offers, in both of the processes in which it lives.

In Flatout's own process: its words, and the environment that the job needs from its first moment. In the
user's process, as soon as torch is there: `turn_on`, and `turn_off`, which puts back what was found.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar


class Switch:
    """Subclasses say what and how; this one changes nothing."""

    name: ClassVar[str]
    # What it shows, and what that takes, in half a sentence each.
    shows: ClassVar[str]
    cost: ClassVar[str]
    needs_cuda: ClassVar[bool] = False
    # Levers that would undo it: a plan is applied without them.
    against: ClassVar[tuple[str, ...]] = ()
    # Variables of the job's environment; the user's own stay as they are.
    environment: ClassVar[dict[str, str]] = {}

    def __init__(self, torch: Any, folder: Callable[[], Path]) -> None:
        self.torch = torch
        # Where this process leaves what it has seen; made when it is asked for.
        self.folder = folder
        # Hears of it where one fails that was on already.
        self.tell: Callable[[Exception], None] = lambda _error: None

    def turn_on(self) -> None:
        """On."""

    def turn_off(self) -> None:
        """As it was found."""

    def at_first_use(self, begin: Callable[[], None]) -> None:
        """Begin when CUDA starts: nothing of ours starts it, and what fails then is told, not raised."""

        def guarded() -> None:
            try:
                begin()
            except Exception as error:  # noqa: BLE001 - a switch may fail alone
                self.tell(error)

        self.torch.cuda._lazy_call(guarded)  # noqa: SLF001 - as torch does it for seeds

    def close(self) -> None:
        """The process ends: write what is to be kept."""
