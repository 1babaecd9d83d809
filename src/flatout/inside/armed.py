"""The sessions that watch this process, and what they do when it forks."""

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flatout.inside.session import Session

_armed: list["Session"] = []


def armed_session() -> "Session | None":
    """The session that watches this process, or None."""
    return _armed[-1] if _armed else None


def enlist(session: "Session") -> None:
    """It watches from here on."""
    _armed.append(session)
    _follow_forks()


def dismiss(session: "Session") -> None:
    """It watches no longer."""
    if session in _armed:
        _armed.remove(session)


@functools.cache
def _follow_forks() -> None:
    """Once a process: what is registered stays for good, and sessions come and go."""

    def each(call: Callable[["Session"], None]) -> Callable[[], None]:
        def hook() -> None:
            for session in _armed:
                call(session)

        return hook

    os.register_at_fork(
        before=each(lambda session: session.before_fork()),
        after_in_parent=each(lambda session: session.after_fork_here()),
        after_in_child=each(lambda session: session.after_fork()),
    )
