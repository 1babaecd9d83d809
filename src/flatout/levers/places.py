"""Where in the user's own source something happened."""

import os
import sys
from types import FrameType
from typing import Any

_OURS = __file__.rpartition("levers")[0]
# Python's own library: `runpy` runs scripts, `contextlib` leaves their blocks.
_PYTHONS_OWN = os.path.dirname(os.__file__)  # noqa: PTH120


def is_users_file(file: str) -> bool:
    """Whether it is the user's own, and neither installed, nor Python's, nor ours."""
    installed = "site-packages" in file or "dist-packages" in file
    return not installed and not file.startswith(("<", _PYTHONS_OWN, _OURS))


def users_frame(torch: Any) -> FrameType | None:
    """The nearest frame that is neither ours, nor torch's, nor Python's own machinery."""
    libraries = (_OURS, torch.__file__.rpartition("__init__")[0])
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None and frame.f_code.co_filename.startswith((*libraries, "<")):
        frame = frame.f_back
    return frame


def users_place(torch: Any) -> list[Any] | None:
    """File and line of that frame."""
    frame = users_frame(torch)
    return [frame.f_code.co_filename, frame.f_lineno] if frame is not None else None
