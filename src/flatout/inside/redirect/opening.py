"""`open` and its kin, through the redirected `os.open`."""

import _io
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from flatout.inside.redirect.os_calls import Calls
from flatout.inside.redirect.place import as_text
from flatout.inside.redirect.stand_in import call_real

_READING = ("r", "rb", "rt", "br", "tr")


class Files:
    """`open` and its kin: the real ones, with an opener that goes through our `os.open`."""

    def __init__(self, calls: Calls, expected: threading.local, os_open: Callable[..., int]) -> None:
        self._calls, self._expected, self._os_open = calls, expected, os_open
        self.file_io = self._make_file_io()

    def open(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Callable[[Any, int], int] | None = None,
    ) -> Any:
        """As the built-in."""
        rest = (mode, buffering, encoding, errors, newline, closefd)
        if as_text(file) is None or self._as_it_is(file, mode, opener):
            return call_real(_io.open, None, file, *rest, opener)
        # The name stays the one that was given, and the opener alone knows better.
        with self._expecting(file):
            return call_real(_io.open, None, file, *rest, opener or self._opener)

    def open_code(self, path: str) -> Any:
        """As `io.open_code`."""
        place = self._calls.where_to_read(path)
        return _io.open_code(path if place is None else place)

    def create_dynamic(self, spec: Any, *more: Any) -> Any:
        """What loads a compiled module: by the path in its spec."""
        import _imp

        given = spec.origin
        there = None if as_text(given) is None else self._calls.where_to_read(given)
        spec.origin = given if there is None else there
        try:
            return _imp.create_dynamic(spec, *more)
        finally:
            spec.origin = given

    def _make_file_io(self) -> type[_io.FileIO]:
        """A class in the place of `io.FileIO`, which some call by themselves."""
        files = self

        class Kind(type):
            def __instancecheck__(cls, instance: object) -> bool:
                return isinstance(instance, _io.FileIO)

            def __subclasscheck__(cls, subclass: type) -> bool:
                return issubclass(subclass, _io.FileIO)

        class FileIO(_io.FileIO, metaclass=Kind):  # type: ignore[metaclass]  # in truth it is `type`
            def __init__(self, file: Any, mode: str = "r", closefd: bool = True, opener: Any = None) -> None:
                if as_text(file) is None or files._as_it_is(file, mode, opener):
                    super().__init__(file, mode, closefd, opener)
                    return
                with files._expecting(file):
                    super().__init__(file, mode, closefd, opener or files._opener)

        return FileIO

    def _as_it_is(self, file: Any, mode: Any, opener: Any) -> bool:
        return opener is None and mode in _READING and self._calls.where_to_read(file) is None

    @contextlib.contextmanager
    def _expecting(self, file: Any) -> Iterator[None]:
        # io.open raises its event, with the name that was given, before it asks an opener.
        self._expected.path = os.fspath(file)
        try:
            yield
        finally:
            self._expected.path = None

    def _opener(self, path: Any, flags: int) -> int:
        return self._os_open(path, flags, 0o666)
