"""Where in the user's own source something happened."""

import inspect
import os
import sys
from types import FrameType
from typing import Any

_OURS = __file__.rpartition("levers")[0]
# Python's own library: `runpy` runs scripts, `contextlib` leaves their blocks.
_PYTHONS_OWN = os.path.dirname(os.__file__)  # noqa: PTH120


# The frame's own, the name for it here, and the argument of getrefcount.
_REFERENCES = 3


def locals_of(frame: FrameType) -> dict[str, Any]:
    """The variables of a function that is under way, or of a module, as a copy.

    Until Python 3.13, asking a frame leaves a dictionary with it that lives as long as the function runs, and
    keeps what the function has long let go of: the tensors of a step. Unless the script has it too, it is
    emptied.
    """
    space = frame.f_locals
    found = dict(space)
    is_left_behind = frame.f_code.co_flags & inspect.CO_OPTIMIZED and isinstance(space, dict)
    if is_left_behind and sys.getrefcount(space) <= _REFERENCES:
        space.clear()
    return found


def is_users_file(file: str) -> bool:
    """Whether it is the user's own, and neither installed, nor Python's, nor ours."""
    installed = "site-packages" in file or "dist-packages" in file
    return not installed and not file.startswith(("<", _PYTHONS_OWN, _OURS))


def users_frame(torch: Any) -> FrameType | None:
    """The nearest frame that is neither ours, nor torch's, nor without a file, as Python's imports are."""
    libraries = (_OURS, torch.__file__.rpartition("__init__")[0])
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None and frame.f_code.co_filename.startswith((*libraries, "<")):
        frame = frame.f_back
    return frame


def users_place(torch: Any) -> list[Any] | None:
    """File and line of that frame."""
    frame = users_frame(torch)
    return [frame.f_code.co_filename, frame.f_lineno] if frame is not None else None
