"""The taps of a process by name: put on, asked for, taken off alone when they fail."""

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from flatout.inside.autopsy import AutopsyTap
from flatout.inside.backward import BackwardTap
from flatout.inside.cleanup import CleanupTap
from flatout.inside.clipping import ClippingTap
from flatout.inside.collector import CollectorTap
from flatout.inside.compiler import CompilerTap
from flatout.inside.copies import CopiesTap
from flatout.inside.forward import ForwardTap
from flatout.inside.habits import HabitsTap
from flatout.inside.loader import LoaderTap
from flatout.inside.memory import MemoryTap
from flatout.inside.steps import StepsTap
from flatout.inside.tap import Tap
from flatout.inside.workers import WorkersTap

if TYPE_CHECKING:
    from flatout.inside.session import Session

T = TypeVar("T")

# Those that can be ordered by name.
TAPS: dict[str, Callable[["Session"], Tap]] = {
    "steps": StepsTap,
    "loader": LoaderTap,
    "workers": WorkersTap,
    "copies": CopiesTap,
    "backward": BackwardTap,
    "clipping": ClippingTap,
    "forward": ForwardTap,
    "memory": MemoryTap,
    "collector": CollectorTap,
    "compiler": CompilerTap,
    "habits": HabitsTap,
    "autopsy": AutopsyTap,
    "cleanup": CleanupTap,
}


class Rack:
    """Holds them; `failed` says of those that are off for good why."""

    def __init__(self) -> None:
        self.failed: dict[str, str] = {}
        self._taps: dict[str, Tap] = {}
        # Those that failed: one that could not go at once is asked again at the end.
        self._off: list[Tap] = []

    def names(self) -> list[str]:
        """Of those that are on."""
        return sorted(self._taps)

    def install(self, name: str, make: Callable[[], Tap]) -> None:
        """Put one on; one that cannot be is noted, and the others go on."""
        try:
            tap = make()
            tap.install()
            self._taps[name] = tap
        except Exception as error:  # noqa: BLE001 - a tap may fail alone
            self.fail(name, error)

    def tap(self, name: str, kind: type[T]) -> T | None:
        """The tap of this name, unless it was not ordered or has failed."""
        tap = self._taps.get(name)
        return tap if isinstance(tap, kind) else None

    def fail(self, name: str, error: Exception) -> None:
        """Turn a tap off for good, and remember why."""
        self.failed.setdefault(name, f"{type(error).__name__}: {error}")
        tap = self._taps.pop(name, None)
        if tap is not None:
            self._off.append(tap)
            with contextlib.suppress(Exception):
                tap.remove()

    def guarded(self, name: str, call: Callable[..., Any], *args: Any) -> None:
        """Call something of ours; whatever it raises turns the tap `name` off, and reaches nobody."""
        if name not in self.failed:
            try:
                call(*args)
            except Exception as error:  # noqa: BLE001 - observing never breaks a job
                self.fail(name, error)

    def leave_on(self, name: str) -> Tap | None:
        """The tap of this name, which stays on when the others are taken off."""
        return self._taps.pop(name, None)

    def remove_all(self) -> None:
        """Leave the process as it was found."""
        # What was put on last covers what was there before.
        for tap in [*list(self._taps.values())[::-1], *self._off]:
            with contextlib.suppress(Exception):
                tap.remove()
        self._taps.clear()
        self._off.clear()
