"""The index of runs: locked, corrupt, foreign or on a disk without locks (fault 56)."""

import contextlib
import json
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.records import index
from flatout.records.errors import ForeignVersion
from flatout.records.index import FILE, INDEX_VERSION, RunIndex
from flatout.records.lock import folder_lock
from flatout.records.runs import MANIFEST, RunFolder

LOCKER = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
"""
ADDER = """
import sys
from pathlib import Path
from flatout.records.index import RunIndex
from flatout.records.lock import folder_lock
from flatout.records.runs import RunFolder
root = Path(sys.argv[1])
for _ in range(5):
    run = RunFolder.create(root, command="doctor", arguments=())
    RunIndex(root, notice=print).add(run.manifest)
"""


class Runs:
    """A `.flatout` folder with its index, and what the user was told."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.file = root / FILE
        self.notices: list[str] = []

    def make(self, command: str = "doctor", *, done: bool = True) -> RunFolder:
        run = RunFolder.create(self.root, command=command, arguments=())
        if done:
            with run.writing():
                pass
        self.index().add(run.manifest)
        return run

    def index(self, busy_timeout_s: float = 0.05) -> RunIndex:
        return RunIndex(self.root, notice=self.notices.append, busy_timeout_s=busy_timeout_s)

    def ids(self) -> set[str]:
        return {entry.id for entry in self.index().entries()}

    def indexed_ids(self) -> set[str]:
        """What the file itself holds, seen without our code."""
        with contextlib.closing(sqlite3.connect(self.file)) as database:
            return {row[0] for row in database.execute("SELECT id FROM runs")}

    def set_aside(self) -> list[Path]:
        return list(self.root.glob(f"{FILE}.corrupt-*"))


@pytest.fixture
def project(tmp_path: Path) -> Runs:
    return Runs(tmp_path / ".flatout")


@contextlib.contextmanager
def locked_elsewhere(file: Path) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-c", LOCKER, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        yield


def test_lists_runs_newest_first_with_their_state(project: Runs) -> None:
    first, second = project.make("doctor"), project.make("limits", done=False)
    for run, when in ((first, "2026-11-14T00:00:00Z"), (second, "2026-11-15T00:00:00Z")):
        manifest = json.loads((run.path / MANIFEST).read_bytes())
        (run.path / MANIFEST).write_text(json.dumps({**manifest, "created_at": when}))
        project.index().add(RunFolder.open(run.path).manifest)
    found = project.index().entries()
    assert [(entry.id, entry.command, entry.status) for entry in found] == [
        (second.manifest.id, "limits", "died"),
        (first.manifest.id, "doctor", "done"),
    ]
    assert found[0].created_at == "2026-11-15T00:00:00+00:00"
    assert project.notices == []


def test_the_new_state_of_a_run_replaces_the_old(project: Runs) -> None:
    run = project.make(done=False)
    with run.writing():
        pass
    project.index().add(run.manifest)
    assert [entry.status for entry in project.index().entries()] == ["done"]


def test_a_run_that_ended_without_telling_the_index_is_refreshed(project: Runs) -> None:
    run = project.make(done=False)
    with run.writing():
        pass
    assert [entry.status for entry in project.index().entries()] == ["done"]


def test_several_processes_add_at_once_and_none_is_lost(project: Runs) -> None:
    adders = [
        subprocess.Popen([sys.executable, "-c", ADDER, str(project.root)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = [adder.communicate(timeout=60)[0] for adder in adders]
    assert [adder.returncode for adder in adders] == [0, 0, 0]
    assert said == ["", "", ""]
    assert len(project.indexed_ids()) == 15


def test_an_index_locked_for_long_is_replaced_by_the_folders_with_a_notice(project: Runs) -> None:
    runs = {project.make().manifest.id, project.make().manifest.id}
    data = project.file.read_bytes()
    with locked_elsewhere(project.file):
        assert project.ids() == runs
        assert len(project.notices) == 1
        assert "locked" in project.notices[0]
        assert "reading the folders instead" in project.notices[0]
        added = project.make().manifest.id
        assert len(project.notices) == 2
    assert project.file.read_bytes() == data
    assert project.set_aside() == []
    assert project.ids() == {*runs, added}, "what could not be added is caught up with"
    assert len(project.notices) == 2


def test_an_index_locked_for_a_moment_is_waited_for(project: Runs) -> None:
    run = project.make()
    holder = sqlite3.connect(project.file, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN EXCLUSIVE")
    released = threading.Event()

    def release() -> None:
        released.set()
        holder.execute("COMMIT")

    late = threading.Timer(0.2, release)
    late.start()
    try:
        found = project.index(busy_timeout_s=60).entries()
        assert released.is_set(), "the answer came while the index was still locked"
    finally:
        late.join()
        holder.close()
    assert [entry.id for entry in found] == [run.manifest.id]
    assert project.notices == []


def overwrite(data: bytes, start: int, length: int) -> bytes:
    return data[:start] + b"\xa5" * length + data[start + length :]


DAMAGE = {
    "random bytes": lambda _: bytes(range(256)) * 40,
    "text": lambda _: b"this is no database at all, whatever its name says\n" * 20,
    "cut in half": lambda data: data[: len(data) // 2],
    "cut in the second page": lambda data: data[:5000],
    "a flipped header": lambda data: overwrite(data, 0, 16),
    "a broken first page": lambda data: overwrite(data, 100, 200),
    "a column by another name": lambda data: data.replace(b"created_at TEXT", b"created_ax TEXT"),
    "text that is not UTF-8": lambda data: data.replace(b"done", b"d\xffne"),
    "a schema that is not UTF-8": lambda data: data.replace(b"CREATE TABLE", b"\xe8REATE TABLE"),
    "a broken second page": lambda data: overwrite(data, 4096, 4096),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_corrupt_index_is_set_aside_and_made_again(project: Runs, how: str) -> None:
    runs = {project.make().manifest.id for _ in range(3)}
    damaged = DAMAGE[how](project.file.read_bytes())
    assert damaged != project.file.read_bytes()
    project.file.write_bytes(damaged)
    assert project.ids() == runs
    (aside,) = project.set_aside()
    assert aside.read_bytes() == damaged
    assert len(project.notices) == 1
    assert aside.name in project.notices[0]
    assert project.indexed_ids() == runs
    assert project.ids() == runs
    assert len(project.notices) == 1, "said once"


def test_adding_to_a_corrupt_index_sets_it_aside_too(project: Runs) -> None:
    first = project.make()
    project.file.write_bytes(b"garbage " * 1000)
    second = project.make()
    assert len(project.set_aside()) == 1
    assert project.ids() == {first.manifest.id, second.manifest.id}


def test_a_corrupt_index_that_cannot_be_set_aside_is_replaced_by_the_folders(
    project: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = project.make()
    project.file.write_bytes(b"garbage " * 1000)

    def read_only(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "replace", read_only)
    assert project.ids() == {run.manifest.id}
    assert "cannot be set aside" in project.notices[0]
    assert project.file.read_bytes() == b"garbage " * 1000


def test_a_value_of_the_wrong_type_counts_as_corrupt(project: Runs) -> None:
    run = project.make()
    with contextlib.closing(sqlite3.connect(project.file)) as database, database:
        database.execute("UPDATE runs SET created_at = x'ff00'")
    assert [entry.created_at[:2] for entry in project.index().entries()] == ["20"]
    assert len(project.set_aside()) == 1
    assert project.ids() == {run.manifest.id}


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Runs, bytes]:
    project = Runs(tmp_path_factory.mktemp("flipped") / ".flatout")
    for _ in range(3):
        project.make()
    return project, project.file.read_bytes()


@settings(derandomize=True, deadline=None, max_examples=60)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_one_flipped_bit_anywhere_never_hides_a_run(
    indexed: tuple[Runs, bytes], place: float, bit: int
) -> None:
    project, good = indexed
    for file in project.root.glob(f"{FILE}*"):
        file.unlink()
    damaged = bytearray(good)
    damaged[int(place * len(good))] ^= 1 << bit
    project.file.write_bytes(damaged)
    truth = {path.name for path in (project.root / "runs").iterdir()}
    try:
        found = project.index().entries()
    except ForeignVersion:
        assert 60 <= int(place * len(good)) < 64, "only the version's own bytes make it foreign"
        return
    assert {entry.id for entry in found} == truth
    assert len(found) == len(truth)


def test_an_index_of_a_newer_version_is_refused_and_left_alone(project: Runs) -> None:
    project.make()
    with contextlib.closing(sqlite3.connect(project.file)) as database, database:
        database.execute("ALTER TABLE runs ADD COLUMN price REAL")
        database.execute(f"PRAGMA user_version = {INDEX_VERSION + 1}")
    data = project.file.read_bytes()
    with pytest.raises(ForeignVersion) as refused:
        project.index().entries()
    assert refused.value.found == INDEX_VERSION + 1
    assert project.file.read_bytes() == data
    assert project.set_aside() == []
    assert project.notices == []


def test_a_run_saved_beside_an_index_of_a_newer_version_is_saved_with_a_notice(project: Runs) -> None:
    project.make()
    with contextlib.closing(sqlite3.connect(project.file)) as database, database:
        database.execute(f"PRAGMA user_version = {INDEX_VERSION + 1}")
    data = project.file.read_bytes()
    run = project.make()
    assert RunFolder.open(run.path).manifest.status == "done"
    assert len(project.notices) == 1
    assert "not in the index" in project.notices[0]
    assert project.file.read_bytes() == data


def test_a_deleted_folder_is_dropped(project: Runs) -> None:
    kept, gone = project.make(), project.make()
    assert project.ids() == {kept.manifest.id, gone.manifest.id}
    shutil.rmtree(gone.path)
    assert project.ids() == {kept.manifest.id}
    assert project.indexed_ids() == {kept.manifest.id}
    assert project.notices == []


def test_a_folder_copied_in_is_taken_up(project: Runs, tmp_path: Path) -> None:
    own = project.make()
    other = RunFolder.create(tmp_path / "cluster", command="limits", arguments=())
    shutil.copytree(other.path, own.path.parent / other.path.name)
    assert project.ids() == {own.manifest.id, other.manifest.id}


def test_a_renamed_folder_is_listed_under_the_name_by_which_it_is_found(project: Runs) -> None:
    run = project.make()
    run.path.rename(run.path.with_name("before-the-upgrade"))
    assert project.ids() == {"before-the-upgrade"}
    assert project.ids() == {"before-the-upgrade"}
    shutil.copytree(run.path.with_name("before-the-upgrade"), run.path.with_name("a-copy"))
    assert project.ids() == {"before-the-upgrade", "a-copy"}


def test_a_deleted_index_is_made_again_without_a_word(project: Runs) -> None:
    run = project.make()
    project.file.unlink()
    assert project.ids() == {run.manifest.id}
    assert project.indexed_ids() == {run.manifest.id}
    assert project.notices == []


@pytest.mark.parametrize("manifest", [b"{", b'{"schema": "flatout.run-folder/9"}'])
def test_a_folder_that_cannot_be_read_is_left_out_with_a_notice(project: Runs, manifest: bytes) -> None:
    run, bad = project.make(), project.root / "runs" / "20261115-bad"
    bad.mkdir()
    (bad / MANIFEST).write_bytes(manifest)
    assert project.ids() == {run.manifest.id}
    assert len(project.notices) == 1
    assert "20261115-bad" in project.notices[0]
    assert (bad / MANIFEST).read_bytes() == manifest


def test_without_a_folder_the_list_is_empty_and_nothing_is_made(project: Runs) -> None:
    assert project.index().entries() == []
    assert project.notices == []
    assert list(project.root.parent.iterdir()) == []


def test_a_disk_without_locks_is_listed_from_the_folders(
    project: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {project.make().manifest.id, project.make().manifest.id}
    asked: list[object] = []

    def connect(*words: object, **_: object) -> sqlite3.Connection:
        asked.append(words)
        raise sqlite3.OperationalError("locking protocol")

    monkeypatch.setattr(index.sqlite3, "connect", connect)
    assert project.ids() == runs
    assert len(asked) == 1
    assert project.notices == [
        "the index of runs cannot be used (locking protocol): reading the folders instead"
    ]
    project.make()
    assert len(project.notices) == 2
    assert project.set_aside() == []


def test_a_folder_in_the_indexs_place_is_listed_from_the_folders(project: Runs) -> None:
    run = RunFolder.create(project.root, command="doctor", arguments=())
    project.file.mkdir()
    assert project.ids() == {run.manifest.id}
    assert len(project.notices) == 1
    assert project.file.is_dir()


def test_a_run_that_holds_its_lock_is_running_and_one_of_another_machine_is_not_judged(project: Runs) -> None:
    run = project.make("limits", done=False)
    with folder_lock(run.path):
        assert [entry.status for entry in project.index().entries()] == ["running"]
    assert [entry.status for entry in project.index().entries()] == ["died"]
    manifest = json.loads((run.path / MANIFEST).read_bytes())
    (run.path / MANIFEST).write_text(json.dumps({**manifest, "host": "elsewhere"}))
    (project.root / "index.sqlite").unlink()
    assert [entry.status for entry in project.index().entries()] == ["running"]
