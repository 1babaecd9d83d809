"""The audit hook below the redirection: what slips past is seen before it happens."""

import os
import posix
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from flatout.inside.redirect.place import WRITING, Layer, database_path, descriptor_path, is_channel
from flatout.inside.redirect.programs import STARTING, unseen_program
from flatout.inside.redirect.shadow import View
from flatout.inside.redirect.stand_in import Breach


class Tripwire:
    """The audit hook: sees what reached the kernel by a way that we have not replaced, before it happens.

    It does not look at the events of `shutil` and `tempfile`: those name the script's paths, and what the
    functions then do to files comes here again, redirected or not.
    """

    def __init__(self, view: View, breach: Breach, on_program: Callable[[str], None]) -> None:
        self._view, self._breach, self._on_program = view, breach, on_program
        self._programs: set[str] = set()
        # The path that the next event of this thread may name, though it looks like one of the user's.
        self.expected = threading.local()
        self._checks: dict[str, Callable[[tuple[Any, ...]], Iterator[tuple[Any, int, bool]]]] = {
            "os.remove": lambda args: iter([(args[0], args[1], False)]),
            "os.rmdir": lambda args: iter([(args[0], args[1], False)]),
            "os.mkdir": lambda args: iter([(args[0], args[2], False)]),
            "os.rename": lambda args: iter([(args[0], args[2], False), (args[1], args[3], False)]),
            "os.link": lambda args: iter([(args[1], args[3], False)]),
            "os.symlink": lambda args: iter([(args[1], args[2], False)]),
            "os.truncate": lambda args: iter([(args[0], -1, True)]),
            "os.chmod": lambda args: iter([(args[0], args[2], True)]),
            "os.chown": lambda args: iter([(args[0], args[3], True)]),
            "os.utime": lambda args: iter([(args[0], args[3], True)]),
            "os.setxattr": lambda args: iter([(args[0], -1, True)]),
            "os.removexattr": lambda args: iter([(args[0], -1, True)]),
            "os.chflags": lambda args: iter([(args[0], -1, True)]),
            "sqlite3.connect": _opened_database,
            "socket.bind": lambda args: iter([(args[1], -1, False)] if _is_path(args[1]) else []),
            "open": self._opened,
        }

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        """Called for every event of the interpreter: most cost one look-up."""
        check = self._checks.get(event)
        if check is not None and not self._breach.under_way:
            try:
                outside = [
                    path for path, dir_fd, follow in check(args) if self._is_outside(path, dir_fd, follow)
                ]
            except RecursionError:
                raise
            except Exception as error:  # noqa: BLE001 - what cannot be judged is not let through
                self._breach(f"{event}{args}: {type(error).__name__}: {error}")
            if outside:
                self._breach(f"{event} of {outside[0]!r}, past the redirection")
        elif event in STARTING:
            self._started(*STARTING[event](args))

    def _opened(self, args: tuple[Any, ...]) -> Iterator[tuple[Any, int, bool]]:
        path, _, flags = args
        is_path = isinstance(path, str | bytes | os.PathLike)
        if is_path and isinstance(flags, int) and flags & WRITING:
            yield os.fspath(path), -1, True

    def _is_outside(self, path: Any, dir_fd: int, follow: bool) -> bool:
        """Whether a change of this path would change a file of the user's."""
        if getattr(self.expected, "path", None) == path:
            self.expected.path = None
            return False
        try:
            if isinstance(path, int):
                text = descriptor_path(path)
                if not text.startswith("/"):
                    return False
            else:
                text = os.fsdecode(path)
            if not text.startswith("/"):
                text = f"{posix.getcwd() if dir_fd == -1 else descriptor_path(dir_fd)}/{text}"
            place = self._view.locate(text, follow, bare=True)
        except OSError:
            return False  # the kernel will refuse as well
        return place.layer is not Layer.FREE and not is_channel(place.found)

    def _started(self, program: Any, words: Sequence[Any], environment: Mapping[Any, Any] | None) -> None:
        """Say, once, that a program runs whose writes we cannot see. Nothing is ended for that."""
        try:
            name = unseen_program(os.fsdecode(program), [os.fsdecode(word) for word in words], environment)
        except Exception as error:  # noqa: BLE001 - an unusual command line is no breach
            name = f"{program!r} ({type(error).__name__})"
        if name is not None and name not in self._programs:
            self._programs.add(name)
            self._on_program(name)


def _is_path(address: Any) -> bool:
    return isinstance(address, str | bytes) and os.fsencode(address)[:1] not in (b"", b"\0")


def _opened_database(args: tuple[Any, ...]) -> Iterator[tuple[Any, int, bool]]:
    name = os.fsdecode(args[0])
    path = database_path(name) if name.startswith("file:") else name
    if path not in ("", ":memory:", None):
        yield path, -1, True
