"""A tap: something that watches one thing in the user's process, and can be taken off again."""

import functools
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from flatout.inside.session import Session

F = TypeVar("F", bound=Callable[..., Any])

clock = time.perf_counter_ns
# Which thread this is. Only the one that calls `backward()` trains; what others do is not its time.
thread = threading.get_ident


# Python's warnings count frames upwards to find the line to name. They skip those of its import system, which
# they know by these two words; with a frame of ours counted, they would name another line than they do bare.
_UNCOUNTED = "<flatout, not counted by warnings: importlib _bootstrap>"


def unseen(function: F) -> F:
    """The same function, whose frame warnings do not count."""
    plain: Any = function
    plain.__code__ = plain.__code__.replace(co_filename=_UNCOUNTED)
    return function


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


def undo_all(patches: list[Patch]) -> None:
    """Put everything back, the last first."""
    while patches:
        patches.pop().undo()


def timed(
    session: "Session",
    kind: str,
    real: Callable[..., Any],
    payload: Callable[[Any, Any], Any],
    *,
    tap: str,
) -> Callable[..., Any]:
    """`real`, with the same signature and name; calls that return are logged with `payload(args, result)`.

    What `real` raises passes through untouched; what `payload` raises turns the tap off.
    """
    log, ranges = session.log.add, session.ranges

    @functools.wraps(real)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not session.watching:
            return real(*args, **kwargs)
        if ranges is not None:
            ranges.push(kind)
        session.busy += 1
        started = clock()
        try:
            result = real(*args, **kwargs)
        finally:
            ended = clock()
            session.busy -= 1
            if ranges is not None:
                ranges.pop()
        if tap not in session.failed:
            try:
                log((kind, started, ended, payload(args, result)))
            except Exception as error:  # noqa: BLE001 - observing never breaks a job
                session.fail(tap, error)
        return result

    return unseen(wrapper)
