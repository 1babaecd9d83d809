"""What functions that run call the objects that they hold.

Their variables are not among what Python's collector can find: it does not look into a function that runs.
"""

import dataclasses
import sys
from types import CodeType, FrameType

from flatout.levers.places import locals_of
from flatout.records.memory_growth import HolderKind

_OURS = (__file__.rpartition("inside")[0], "<flatout")


@dataclasses.dataclass(frozen=True)
class Name:
    """A name, what it belongs to, and where that stands."""

    text: str
    kind: HolderKind
    scope: str = ""
    file: str = ""
    # The first and the last line of the function, or of the class.
    lines: tuple[int, int] | None = None


def local_names() -> dict[int, list[Name]]:
    """Of every function that runs, in any thread, the innermost first; by the address of what they hold."""
    found: dict[int, list[Name]] = {}
    frames: list[FrameType | None] = list(sys._current_frames().values())  # noqa: SLF001
    while frames:
        frame = frames.pop()
        # Python 3.11 was seen to hand out something else for a function of another thread that was ending.
        while isinstance(frame, FrameType):
            if not frame.f_code.co_filename.startswith(_OURS):
                for name, address in variables(frame):
                    found.setdefault(address, []).append(variable(name, frame.f_code))
            frame = frame.f_back
    # Nothing is left in here that refers to this function itself: that would be a circle, in which all who
    # called it, with all that they hold, would wait for the collector.
    return found


def variable(name: str, code: CodeType) -> Name:
    """A variable of a function, or of a module."""
    if code.co_name == "<module>":
        return Name(name, "global", "", code.co_filename)
    return Name(name, "local", f"{code.co_qualname}()", code.co_filename, lines_of(code))


def variables(frame: FrameType) -> list[tuple[str, int]]:
    """Names and addresses of what they stand for."""
    return [(name, id(value)) for name, value in locals_of(frame).items()]


def lines_of(code: CodeType) -> tuple[int, int]:
    """The first and the last line of a function, with those inside of it."""
    last = max((line for *_, line in code.co_lines() if line is not None), default=code.co_firstlineno)
    inner = [lines_of(one)[1] for one in code.co_consts if isinstance(one, CodeType)]
    return code.co_firstlineno, max(last, *inner) if inner else last
