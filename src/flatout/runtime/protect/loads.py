"""What a script loads: one that finds its own checkpoint needs nobody to bring it back.

Its own is what it did not load in its first life, and what it loads before its first update with another
content than then. What its loop loads and overwrites on the way is a part of the loop.
"""

import functools
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

from flatout.inside.imports import after_import
from flatout.inside.tap import Patch, unseen
from flatout.runtime.protect.found import is_a_script
from flatout.runtime.stopping import current

_LOADING = (("torch", "load"), ("safetensors.torch", "load_file"))
# Larger files are known by so many pieces of them. A time would not do: files are copied to where jobs run.
_READ_WHOLE = 1 << 30
_PIECE, _PIECES = 4 << 20, 64

# A file, the lines that asked for it, and what was in it: "" where that does not matter.
Load = list[str]


class Loads:
    """Files from which tensors were loaded."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._pid = os.getpid()
        self.seen: list[Load] = []
        self._known: set[tuple[str, str]] = set()
        # By their files; None where there is nothing to compare.
        self._then: dict[str, list[Load]] | None = None
        self._on_strange: Callable[[str], None] = lambda _path: None

    def install(self, then: list[Load] | None, on_strange: Callable[[str], None]) -> None:
        """Begin to look; `on_strange` is told of what was not loaded so in an earlier life."""
        self._on_strange = on_strange
        if then is not None and all(
            isinstance(one, list) for one in then
        ):  # names alone: of an older Flatout
            self._then = {}
            for one in then:
                self._then.setdefault(one[0], []).append(one)
        for module, name in _LOADING:
            after_import(module, functools.partial(self._watch, name))

    def _watch(self, name: str, module: Any) -> None:
        real = getattr(module, name, None)
        if real is None:
            return
        loads = self

        @functools.wraps(real)
        def load(file: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(file, str | os.PathLike) and os.getpid() == loads._pid:  # data is read in workers
                path = os.path.abspath(os.fspath(file))  # noqa: PTH100 - links are followed by whoever opens
                loads._asked_for(path, loads._place(sys._getframe(1)))  # noqa: SLF001
            return real(file, *args, **kwargs)

        Patch(module, name, unseen(load))

    def _asked_for(self, path: str, place: str) -> None:
        if (path, place) in self._known:
            return
        self._known.add((path, place))
        # Until the first update of a first life, and all the way back to it in a later one.
        content = _content(path) if current().at_once else ""
        then = self._then.get(path, []) if self._then is not None else []
        here = next((one for one in then if one[1] == place), None)
        self.seen.append(here or [path, place, content])
        if self._then is not None and not _is_as_then(then, here, content):
            self._then = None
            self._on_strange(path)

    def _place(self, frame: FrameType | None) -> str:
        """The lines of the script that lead there, the nearest first."""
        lines = []
        while frame is not None:
            if is_a_script(self._torch, frame):
                lines.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
            frame = frame.f_back
        return " ".join(lines)


def _is_as_then(then: list[Load], here: Load | None, content: str) -> bool:
    """Whether a file is one that an earlier life began with, or that its loop loaded at this place."""
    # A line may have moved, in a file beside the script; what only the loop loaded is another matter.
    known = [here] if here is not None else [one for one in then if one[2]]
    return any(not one[2] or not content or one[2] == content for one in known)


def _content(path: str) -> str:
    """What tells a file from what it was: its size, and a checksum; "" where it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest = hashlib.blake2b(digest_size=16)
            for piece in _pieces(file, size):
                digest.update(piece)
    except OSError:
        return ""
    return f"{size}:{digest.hexdigest()}"


def _pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    if size <= _READ_WHOLE:
        while piece := file.read(_PIECE):
            yield piece
        return
    for at in range(_PIECES):
        file.seek((size - _PIECE) * at // (_PIECES - 1))
        yield file.read(_PIECE)
