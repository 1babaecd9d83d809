"""What every Python process of a trial gets before the user's first line: trackers offline, writes aside.

Where a file system overlay protects the user's files, only the trackers remain to be looked after.
"""

import contextlib
import functools
import os
from pathlib import Path
from typing import Any

from flatout.records.session import NOTES_FILE, Order

# A trial that would have written past its shield ends with this code.
EXIT_BREACH = 96


def protect(order: Order) -> None:
    """Install what the order asks for; a process that cannot be protected ends here."""
    notes = Path(order.folder) / NOTES_FILE
    if order.redirect_to is not None:  # first: nothing may keep this from happening
        try:
            _redirect(order, notes)
        except Exception as error:  # noqa: BLE001 - better no trial than one that writes
            _end(notes, f"writes could not be redirected: {type(error).__name__}: {error}")
    if order.aside is not None:
        from flatout.inside.services import keep_services_offline

        keep_services_offline(
            Path(order.aside), lambda service, what: _note(notes, f"kept offline: {service} {what}")
        )


def _redirect(order: Order, notes: Path) -> None:
    from flatout.inside.imports import after_import
    from flatout.inside.redirect import install_redirect

    def breach(what: str) -> None:
        _end(notes, f"ended because it would have written past the shield: {what}")

    def program(name: str) -> None:
        _note(notes, f"started {name}, whose writes could not be redirected")

    assert order.redirect_to is not None
    shadow = Path(order.redirect_to)
    shadow.mkdir(parents=True, exist_ok=True)
    install_redirect(shadow, [Path(path) for path in order.redirect_except], breach, program)
    after_import("multiprocessing.process", functools.partial(_keep_sockets_aside, folder=shadow / "sockets"))


def _keep_sockets_aside(process: Any, folder: Path) -> None:
    """Workers hand tensors over by sockets in a temporary folder; a socket's path cannot be redirected."""
    with contextlib.suppress(OSError):
        folder.mkdir(exist_ok=True)
        process.current_process()._config.setdefault("tempdir", str(folder))  # noqa: SLF001


def _end(notes: Path, text: str) -> None:
    try:
        _note(notes, text)
    finally:
        os._exit(EXIT_BREACH)


def _note(notes: Path, text: str) -> None:
    with notes.open("a") as file:
        file.write(text.replace("\n", " ") + "\n")
