"""A SQLite index of the runs in a folder, so that listing thousands of them stays quick.

The run folders are the truth and the index only a copy: a corrupt one is set aside and made again, a disk
that cannot lock is listed from the folders, and one that a newer Flatout made is refused, not rewritten.
"""

import contextlib
import dataclasses
import datetime as dt
import platform
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from flatout.records.errors import FlatoutError, ForeignVersion
from flatout.records.lock import is_locked
from flatout.records.runs import RunFolder, RunManifest, runs_under

T = TypeVar("T")

INDEX_VERSION = 1
FILE = "index.sqlite"
# Of a run that was killed.
DIED = "died"
_BUSY_TIMEOUT_S = 5.0
_CREATE = """
CREATE TABLE IF NOT EXISTS runs (
    id TEXT PRIMARY KEY, command TEXT NOT NULL, created_at TEXT NOT NULL,
    host TEXT NOT NULL, flatout_version TEXT NOT NULL, status TEXT NOT NULL
)"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunEntry:
    """One line in a list of runs."""

    id: str
    command: str
    created_at: str
    host: str
    flatout_version: str
    status: str


class RunIndex:
    """The index of the runs under one `.flatout` folder. `notice` hears of every repair, once."""

    def __init__(
        self, root: Path, *, notice: Callable[[str], None], busy_timeout_s: float = _BUSY_TIMEOUT_S
    ) -> None:
        self._root = root
        self._path = root / FILE
        self._notice = notice
        self._busy_timeout_s = busy_timeout_s

    def add(self, manifest: RunManifest) -> None:
        """Put a run in, or its new state. Failing to do so is said, and loses nothing."""
        row = _entry(manifest)

        try:
            self._with_database(lambda database: _insert(database, row), fallback=lambda: None)
        except ForeignVersion as error:
            self._notice(f"the run is saved, but not in the index of runs: {error.received}")

    def entries(self) -> list[RunEntry]:
        """All runs, newest first. A missing folder holds none, and is not made."""
        if not self._root.is_dir():
            return []
        return self._with_database(self._select, fallback=self._from_folders)

    def _select(self, database: sqlite3.Connection) -> list[RunEntry]:
        self._catch_up(database)
        rows = database.execute("SELECT * FROM runs ORDER BY created_at DESC, id DESC").fetchall()
        names = [field.name for field in dataclasses.fields(RunEntry)]
        try:
            return msgspec.convert([dict(zip(names, row, strict=True)) for row in rows], list[RunEntry])
        except (msgspec.ValidationError, ValueError) as error:
            # SQLite does not check what it stores: a flipped bit can make a number of a text.
            raise sqlite3.DatabaseError(str(error)) from error

    def _catch_up(self, database: sqlite3.Connection) -> None:
        """Add folders that were copied here, drop those that were deleted, refresh those still running."""
        known = dict(database.execute("SELECT id, status FROM runs").fetchall())
        present = {path.name: path for path in runs_under(self._root)}
        for gone in known.keys() - present.keys():
            database.execute("DELETE FROM runs WHERE id = ?", (gone,))
        for name, path in present.items():
            if known.get(name, "running") == "running":
                for entry in self._read(path):
                    _insert(database, entry)

    def _from_folders(self) -> list[RunEntry]:
        return [entry for path in runs_under(self._root) for entry in self._read(path)]

    def _with_database(self, work: Callable[[sqlite3.Connection], T], *, fallback: Callable[[], T]) -> T:
        for attempt in (1, 2):
            try:
                with self._connect() as database:
                    return work(database)
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
                if not _is_damage(error):
                    # Locked for longer than the timeout, or a disk that cannot lock at all.
                    self._notice(f"the index of runs cannot be used ({error}): reading the folders instead")
                    return fallback()
                if attempt == 2:
                    self._notice(f"the index of runs cannot be made again ({error})")
                    return fallback()
                try:
                    self._set_aside(error)
                except OSError as refused:
                    self._notice(
                        f"the index of runs is damaged ({error}) and cannot be set aside "
                        f"({refused.strerror}): reading the folders instead"
                    )
                    return fallback()
        raise AssertionError("unreachable")

    @contextlib.contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(self._path, timeout=self._busy_timeout_s)) as database:
            found = database.execute("PRAGMA user_version").fetchone()[0]
            if found > INDEX_VERSION:
                raise ForeignVersion(self._path, found, readable=f"version {INDEX_VERSION}")
            with database:
                database.execute(_CREATE)
                if found != INDEX_VERSION:  # listing alone writes nothing
                    database.execute(f"PRAGMA user_version = {INDEX_VERSION}")
                yield database

    def _set_aside(self, error: Exception) -> None:
        aside = self._path.with_name(f"{FILE}.corrupt-{int(time.time())}")
        self._path.replace(aside)
        self._notice(
            f"the index of runs was damaged ({error}): kept as {aside.name}, made again from the folders"
        )

    def _read(self, path: Path) -> Iterator[RunEntry]:
        """The entry of a folder, under the folder's name: that is how it can be found, copied or renamed."""
        try:
            run = RunFolder.open(path)
        except FlatoutError as error:
            self._notice(f"left out of the list: {error.received}")
            return
        yield dataclasses.replace(_entry(run.manifest), id=path.name, status=status_of(run))


def status_of(run: RunFolder) -> str:
    """As its manifest has it, or DIED: "running" without its lock, it was killed before it could say so.

    On a disk on which nobody can tell whether the lock is held, it is as the manifest has it.
    """
    here = run.manifest.host == platform.node()
    died = here and run.manifest.status == "running" and is_locked(run.path) is False
    return DIED if died else run.manifest.status


def _is_damage(error: Exception) -> bool:
    """Whether the file itself is at fault: a damaged schema or text looks like a mistake in our SQL."""
    if not isinstance(error, sqlite3.OperationalError):
        return True
    code = getattr(error, "sqlite_errorcode", None)  # Python's own errors have none
    return code == sqlite3.SQLITE_ERROR or str(error).startswith("Could not decode")


def _insert(database: sqlite3.Connection, entry: RunEntry) -> None:
    database.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?)", dataclasses.astuple(entry))


def _entry(manifest: RunManifest) -> RunEntry:
    return RunEntry(
        id=manifest.id,
        command=manifest.command,
        created_at=manifest.created_at.astimezone(dt.UTC).isoformat(timespec="seconds"),
        host=manifest.host,
        flatout_version=manifest.flatout_version,
        status=manifest.status,
    )
