"""A tap: something that watches one thing in the user's process, and can be taken off again."""

import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from flatout.inside.session import Session


class Tap(Protocol):
    """What every tap offers."""

    def install(self) -> None:
        """Begin to watch."""

    def remove(self) -> None:
        """Put back exactly what was found."""


class Patch:
    """One attribute replaced, and put back as it was found: also when it was inherited, not own."""

    def __init__(self, owner: Any, name: str, replacement: Any) -> None:
        self._owner = owner
        self._name = name
        self._had_own = name in vars(owner)
        self._previous = vars(owner).get(name)
        setattr(owner, name, replacement)
        self._replacement = replacement

    def undo(self) -> None:
        """Put it back, unless someone else has replaced it since: theirs stays."""
        if vars(self._owner).get(self._name) is not self._replacement:
            return
        if self._had_own:
            setattr(self._owner, self._name, self._previous)
        else:
            delattr(self._owner, self._name)


def timed(
    session: "Session", name: str, real: Callable[..., Any], note: Callable[..., None]
) -> Callable[..., Any]:
    """`real`, with the same signature and name, that tells `note(nanoseconds, args, result)` after each call.

    What `real` raises passes through untouched; what `note` raises turns the tap off.
    """
    clock = time.perf_counter_ns

    @functools.wraps(real)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        started = clock()
        result = real(*args, **kwargs)
        if name not in session.failed:
            try:
                note(started, clock(), args, result)
            except Exception as error:  # noqa: BLE001 - observing never breaks a job
                session.fail(name, error)
        return result

    return wrapper
