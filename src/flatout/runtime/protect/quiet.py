"""Nothing is printed or written while a loop is run again: all of it is there already.

The terminal is closed at its descriptors. A file that the script opens for writing swallows what it is given,
and goes on at its end when the loop is real; lines that an earlier life wrote after the place that was saved
are cut off then, since they will be written once more. Saving, removing and renaming are void.
"""

import builtins
import contextlib
import functools
import io
import os
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from flatout.inside.imports import after_import
from flatout.inside.tap import Patch, undo_all, unseen
from flatout.runtime.protect.found import is_a_script

_SAVING = (
    ("torch", "save"),
    ("numpy", "save"),
    ("numpy", "savez"),
    ("numpy", "savez_compressed"),
    ("safetensors.torch", "save_file"),
    ("safetensors.torch", "save_model"),
    ("torchvision.utils", "save_image"),
)
_CHANGING = (
    ("os", "remove"),
    ("os", "unlink"),
    ("os", "rename"),
    ("os", "replace"),
    ("os", "rmdir"),
    # Of files that may be gone: Lightning, say, keeps the best few.
    ("os", "chmod"),
    ("os", "utime"),
    ("os", "link"),
    ("os", "symlink"),
    ("os", "truncate"),
    ("shutil", "rmtree"),
    ("shutil", "copytree"),
    ("shutil", "move"),
    ("shutil", "copy"),
    ("shutil", "copy2"),
    ("shutil", "copyfile"),
)


class Quiet:
    """The script's way out: noted while it is real, closed while it is not."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._thread = threading.get_ident()
        self._patches: list[Patch] = []
        self._saved: dict[int, int] = {}
        self._held: weakref.WeakSet[Any] = weakref.WeakSet()
        # Files that the script writes line by line.
        self._written: set[str] = set()
        # Those of an earlier life, with their sizes then; None when all is real.
        self._then: dict[str, int] | None = None
        self._is_void = False

    def install(self, then: dict[str, int] | None) -> None:
        """Begin to look at what is opened; `then`: to come back to, with these files."""
        self._then = then
        self._patches += [Patch(builtins, "open", self._opening(builtins.open))]
        self._patches += [Patch(io, "open", self._opening(io.open))]

    def stop(self) -> None:
        """No longer."""
        undo_all(self._patches)

    @property
    def is_open(self) -> bool:
        """Whether what is printed and written gets out."""
        return not self._is_void

    @property
    def is_behind(self) -> bool:
        """Whether it is on its way to where it was: what it writes is there already."""
        return self._then is not None

    def sizes(self) -> dict[str, int]:
        """How long each file is that was written so far."""
        for file in list(self._held):
            with contextlib.suppress(Exception):
                file.flush()
        found = {}
        for path in self._written:
            with contextlib.suppress(OSError):
                found[path] = Path(path).stat().st_size
        return found

    # Void

    def close(self) -> None:
        """The loop begins that is run again."""
        self._is_void = True
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in (1, 2):
            with contextlib.suppress(OSError):
                self._saved[descriptor] = os.dup(descriptor)
                os.dup2(nowhere, descriptor)
        os.close(nowhere)
        for module, name in (*_SAVING, *_CHANGING):
            after_import(module, functools.partial(self._void, name))
        self._patches.append(Patch(os, "mkdir", self._making(os.mkdir)))

    def open(self) -> None:
        """All is real again."""
        for stream in (sys.stdout, sys.stderr, *self._held):
            with contextlib.suppress(Exception):
                stream.flush()
        for descriptor, saved in self._saved.items():
            os.dup2(saved, descriptor)
            os.close(saved)
        self._saved = {}
        self._is_void = False
        then, self._then = self._then, None
        for path, size in (then or {}).items():
            with contextlib.suppress(OSError):
                if Path(path).stat().st_size > size:
                    os.truncate(path, size)
            self._written.add(path)

    def say(self, text: str) -> None:
        """To the terminal, also while it is closed."""
        with contextlib.suppress(OSError):
            os.write(self._saved.get(2, 2), f"flatout: {text}\n".encode())

    def _void(self, name: str, module: Any) -> None:
        real = getattr(module, name, None)
        if real is None or not self._is_void:
            return
        quiet = self

        @functools.wraps(real)
        def void(*args: Any, **kwargs: Any) -> Any:
            if quiet._is_void and quiet._is_the_scripts():
                return None
            return real(*args, **kwargs)

        self._patches.append(Patch(module, name, unseen(void)))

    def _making(self, real: Callable[..., None]) -> Callable[..., None]:
        """A folder that the loop made is there, and may be made again."""
        quiet = self

        @functools.wraps(real)
        def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
            try:
                real(path, *args, **kwargs)
            except FileExistsError:
                is_made_again = quiet._is_void and Path(path).is_dir() and quiet._is_the_scripts()
                if not is_made_again:
                    raise

        return unseen(mkdir)

    # Files

    def _opening(self, real: Callable[..., Any]) -> Callable[..., Any]:
        quiet = self

        @functools.wraps(real)
        def open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:  # noqa: A001
            if not quiet._concerns_us(file, mode):
                return real(file, mode, *args, **kwargs)
            path = os.path.abspath(os.fspath(file))  # noqa: PTH100 - a link stays one
            if quiet._then is None or not (quiet._is_void or path in quiet._then):
                opened = real(file, mode, *args, **kwargs)
                if "b" not in mode or "a" in mode:
                    quiet._written.add(path)
                    quiet._held.add(opened)
                return opened
            swallowing = _swallowing(quiet, path, mode, *args, **kwargs)
            quiet._held.add(swallowing)
            return swallowing

        return unseen(open)

    def _concerns_us(self, file: Any, mode: Any) -> bool:
        if not isinstance(mode, str) or not isinstance(file, str | os.PathLike) or "+" in mode:
            return False
        if not set(mode) & set("wax") or threading.get_ident() != self._thread:
            return False
        return not os.fspath(file).startswith(("/dev/", "/proc/")) and self._is_the_scripts()

    def _is_the_scripts(self) -> bool:
        """Whether the script asked for it, itself or through the standard library."""
        frame: FrameType | None = sys._getframe(2)  # noqa: SLF001
        own = str(Path(self._torch.__file__).parent)
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(own):
                return False
            if is_a_script(self._torch, frame):
                return True
            frame = frame.f_back
        return False


class _Swallowing(io.RawIOBase):
    """A file that takes everything and keeps nothing until the loop is real, and then goes on at its end."""

    def __init__(self, quiet: Quiet, path: str) -> None:
        self._quiet = quiet
        self._path = path
        self._file: Any = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self._quiet.is_behind:
            return len(data)
        if self._file is None:
            self._file = io.FileIO(self._path, "ab")
        return int(self._file.write(data))

    def fileno(self) -> int:
        if self._file is None:
            self._file = io.FileIO(self._path, "ab")
        return int(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        super().close()


def _swallowing(
    quiet: Quiet,
    path: str,
    mode: str,
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    **_rest: Any,
) -> Any:
    raw = _Swallowing(quiet, path)
    buffered = io.BufferedWriter(raw)
    if "b" in mode:
        return buffered
    return io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering=buffering == 1)
