"""A file for node_exporter's textfile collector, where another open port is not wanted."""

import contextlib
from pathlib import Path

from flatout.monitor.export.exporter import Exporter
from flatout.records.atomic import write_atomically

FILE_NAME = "flatout.prom"


class Textfile:
    """Written so that a reader sees the old one or the new one, never a part."""

    def __init__(self, folder: Path, exporter: Exporter) -> None:
        self.path = folder / FILE_NAME
        self._exporter = exporter

    def write(self) -> None:
        """What a scrape would get now."""
        write_atomically(
            self.path,
            self._exporter.answer("plain"),
            remedy="name a folder that this user may write to, as node_exporter's textfile directory",
        )

    def remove(self) -> None:
        """At a clean end: what nobody renews any more would be told as true for ever."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
