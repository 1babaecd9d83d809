"""The calls that lead to where a script is: its own, and those of libraries below its last one."""

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any, TypeVar

from flatout.levers.places import is_users_file

T = TypeVar("T")

# File, line, function.
Call = tuple[str, int, str]
# Of calls that go deeper, as recursion does, the innermost so many.
_DEEPEST = 48


class Files:
    """Whose a file is; of each it asks once."""

    def __init__(self, torch: Any) -> None:
        self._torchs = torch.__file__.rpartition("__init__")[0]
        self._known: dict[str, bool | None] = {}

    def is_users(self, file: str) -> bool | None:
        """Whether it is the user's own or a library's; None where it is torch's, Python's or ours."""
        if file not in self._known:
            self._known[file] = self._look(file)
        return self._known[file]

    def _look(self, file: str) -> bool | None:
        if file.startswith(self._torchs):
            return None
        if is_users_file(file):
            return True
        return False if "site-packages" in file or "dist-packages" in file else None


def calls_now(files: Files) -> list[tuple[bool, Call]]:
    """Calls on the way to where we are, the innermost first, each with whether it is the user's own."""
    found = []
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        code = frame.f_code
        is_users = files.is_users(code.co_filename)
        if is_users is not None:
            found.append((is_users, (code.co_filename, frame.f_lineno, code.co_qualname)))
        frame = frame.f_back
    return found


def way_of(calls: Sequence[tuple[bool, T]]) -> tuple[T | None, tuple[T, ...]]:
    """The user's innermost call, and the way there and on: of `calls`, the innermost first.

    Between calls of the user's own, libraries are left out; below the last of them they tell more than it
    does. Where nothing is the user's, the innermost of a library stands for it.
    """
    last = next((number for number, (is_users, _) in enumerate(calls) if is_users), None)
    if last is None:
        kept = [call for _, call in calls]
        return (kept[0] if kept else None), tuple(reversed(kept[:_DEEPEST]))
    below = [call for _, call in calls[:last]]
    users = [call for is_users, call in calls[last:] if is_users]
    return users[0], tuple(reversed([*below, *users][:_DEEPEST]))
