"""The run folder: everything that one run found out, readable later, anywhere, without torch.

    .flatout/runs/<id>/
      run.json        what ran, when, where, and how it ended
      <name>.json     one document for each thing that was found (doctor.json, limits.json, ...)

Every file is written atomically. A reader ignores fields that it does not know, and an update keeps them:
an older Flatout never drops what a newer one wrote. Another folder version is refused.
"""

import contextlib
import dataclasses
import datetime as dt
import platform
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

from flatout.records.atomic import ensure_writable, write_atomically
from flatout.records.codec import check_schema, decode, document, encode, parse
from flatout.records.errors import CallerMistake, CannotWrite, CorruptFile, FlatoutError, UnknownName
from flatout.records.lock import folder_lock
from flatout.records.version import __version__
from flatout.records.words import inert

T = TypeVar("T")

FOLDER_VERSION = 1
MANIFEST = "run.json"
_KIND = "run-folder"
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_REPEAT = "the run must be repeated"
_PROBLEM_AT_MOST = 2000
_SECOND = len("20261115-031500")

RunStatus = Literal["running", "done", "failed"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunManifest:
    """What ran, when, where, and how it ended. Never the environment: it may hold secrets."""

    id: str
    command: str
    arguments: tuple[str, ...]
    created_at: dt.datetime
    host: str
    flatout_version: str
    status: RunStatus = "running"
    documents: tuple[str, ...] = ()
    # What ended it, where something did.
    problem: str = ""


def _words(error: BaseException) -> str:
    """What ended a run, for whoever reads its folder."""
    if isinstance(error, KeyboardInterrupt):
        return "stopped by Ctrl-C"
    if isinstance(error, FlatoutError):
        return inert(error.received, but="\n")[:_PROBLEM_AT_MOST]
    return inert(f"{type(error).__name__}: {error}", but="\n")[:_PROBLEM_AT_MOST]


class RunFolder:
    """One run on disk. Make one with `create`, read one with `open`."""

    def __init__(self, path: Path, manifest: RunManifest) -> None:
        self.path = path
        self.manifest = manifest
        self._went_wrong = False

    @classmethod
    def create(cls, root: Path, *, command: str, arguments: tuple[str, ...]) -> "RunFolder":
        """A new folder under `root/runs`, with a name that sorts by time and cannot collide."""
        now = dt.datetime.now(dt.UTC)
        run_id = f"{now:%Y%m%d-%H%M%S}-{command}-{secrets.token_hex(3)}"
        path = root / "runs" / run_id
        ensure_writable(root / "runs", remedy="start Flatout in a folder that this user may write to")
        try:
            path.mkdir()
        except OSError as error:
            raise CannotWrite(path, error, remedy="start Flatout in another folder") from error
        manifest = RunManifest(
            id=run_id,
            command=command,
            arguments=arguments,
            created_at=now,
            host=platform.node(),
            flatout_version=__version__,
        )
        write_atomically(path / MANIFEST, encode(_KIND, FOLDER_VERSION, manifest))
        ignore = root / ".gitignore"
        if not ignore.exists():  # runs are not for a repository; whoever wants them there deletes this file
            write_atomically(ignore, b"*\n")
        return cls(path, manifest)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing folder, of a version that we read."""
        file = path / MANIFEST
        manifest = decode(_manifest_bytes(path), file, _KIND, FOLDER_VERSION, RunManifest, remedy=_REPEAT)
        if not all(map(_is_document_name, manifest.documents)):
            raise CorruptFile(file, "a document in it has an impossible name", remedy=_REPEAT)
        return cls(path, manifest)

    @contextlib.contextmanager
    def writing(self) -> Iterator["RunFolder"]:
        """Hold the folder's lock; ends as "done", or as "failed" after an exception or `went_wrong`."""
        with folder_lock(self.path):
            try:
                yield self
            except BaseException as error:
                try:
                    self._update(status="failed", problem=_words(error))
                except FlatoutError as second:
                    # What went wrong first is what the user must hear.
                    error.add_note(f"and its run folder could not be marked as failed: {second.received}")
                raise
            self._update(status="failed" if self._went_wrong else "done")

    def went_wrong(self) -> None:
        """What ran has failed, though we have not: the run counts as failed when it ends."""
        self._went_wrong = True

    def write(self, name: str, version: int, body: Any) -> Path:
        """Write one document, and list it in the manifest."""
        path = self._document_path(name)
        write_atomically(path, encode(name, version, body))
        if name not in self.manifest.documents:
            self._update(documents=(*self.manifest.documents, name))
        return path

    def read(self, name: str, version: int, record: type[T]) -> T:
        """Read one document back."""
        path = self._document_path(name)
        return decode(self._document_bytes(name), path, name, version, record, remedy=_REPEAT)

    def plain_documents(self) -> dict[str, Any]:
        """Every document as it lies on disk, with fields that we don't know."""
        return {
            name: parse(self._document_bytes(name), self._document_path(name), remedy=_REPEAT)
            for name in self.manifest.documents
        }

    def _document_path(self, name: str) -> Path:
        if not _is_document_name(name):
            raise ValueError(f"{name!r} is no name for a document")
        return self.path / f"{name}.json"

    def _document_bytes(self, name: str) -> bytes:
        path = self._document_path(name)
        try:
            return path.read_bytes()
        except OSError as error:
            if name in self.manifest.documents:
                problem = f"{MANIFEST} lists it, but it cannot be read ({error.strerror})"
                raise CorruptFile(path, problem, remedy=_REPEAT) from error
            raise UnknownName("document of this run", name, self.manifest.documents) from error

    def _update(self, **changes: Any) -> None:
        """Change manifest fields and keep every field that a newer Flatout may have put there."""
        file = self.path / MANIFEST
        on_disk = parse(_manifest_bytes(self.path), file, remedy=_REPEAT)
        check_schema(on_disk, file, _KIND, FOLDER_VERSION, remedy=_REPEAT)
        self.manifest = dataclasses.replace(self.manifest, **changes)
        merged = {**on_disk, **document(_KIND, FOLDER_VERSION, self.manifest)}
        merged.pop("schema")
        write_atomically(file, encode(_KIND, FOLDER_VERSION, merged))


def _is_document_name(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and name != Path(MANIFEST).stem


def _manifest_bytes(path: Path) -> bytes:
    try:
        return (path / MANIFEST).read_bytes()
    except OSError as error:
        problem = f"no {MANIFEST} in it ({error.strerror})"
        raise CorruptFile(path, problem, remedy="name a run folder") from error


def runs_under(root: Path) -> Iterator[Path]:
    """The run folders below `root`, newest first, whatever their version."""
    with contextlib.suppress(OSError):
        yield from sorted((file.parent for file in (root / "runs").glob(f"*/{MANIFEST}")), reverse=True)


def find_run(root: Path, wanted: str, *, of: str = "") -> RunFolder:
    """A run by id, by the beginning of its id, as "latest", or by the path of its folder.

    `of` a command: among the runs of that one alone.
    """
    with contextlib.suppress(OSError):  # a name too long for a path, or a folder that we may not enter
        if (Path(wanted) / MANIFEST).is_file():
            return RunFolder.open(Path(wanted))
    paths = [path for path in runs_under(root) if not of or path.name[_SECOND:].startswith(f"-{of}-")]
    if wanted == "latest" and paths:
        # Names tell seconds; of several runs in the newest one, the manifests know the last.
        newest = [path for path in paths if path.name[:_SECOND] == paths[0].name[:_SECOND]]
        return max(map(RunFolder.open, newest), key=lambda run: run.manifest.created_at.timestamp())
    fitting = [path for path in paths if wanted and path.name.startswith(wanted)]
    if len(fitting) == 1:
        return RunFolder.open(fitting[0])
    if fitting:
        raise CallerMistake(
            f"{len(fitting)} runs begin with {wanted!r}",
            expected=f"the beginning of one: {', '.join(path.name for path in fitting[:5])}",
            remedy="type more of it, or: flatout report latest",
        )
    remedy = (
        ""
        if paths
        else f"flatout {of} train.py   # makes one"
        if of
        else "flatout doctor --save   # makes one"
    )
    raise UnknownName("run", wanted, [path.name for path in paths], remedy=remedy)
