"""A crash at any instant leaves the old file or the new one (in spirit, faults 29 and 30)."""

import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flatout.records.atomic import ensure_writable, write_atomically
from flatout.records.errors import CannotWrite

REWRITER = """
import sys
import threading
from pathlib import Path
from flatout.records.atomic import write_atomically
file, size = Path(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
while True:
    for letter in (b"a", b"b"):
        write_atomically(file, letter * size)
"""

# Forks once for every line of atomic.py that a write passes, and kills the child right before that line.
KILLED_AT_EVERY_LINE = """
import json, os, signal, sys
from pathlib import Path
from flatout.records import atomic

file, size = Path(sys.argv[1]), int(sys.argv[2])
outcomes = []
for fatal in range(1, 200):
    atomic.write_atomically(file, b"a" * size)
    child = os.fork()
    if child == 0:
        passed = 0
        def trace(frame, event, _):
            global passed
            if frame.f_code.co_filename != atomic.__file__:
                return None
            if event == "line":
                passed += 1
                if passed == fatal:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace
        sys.settrace(trace)
        atomic.write_atomically(file, b"b" * size)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    data = file.read_bytes()
    whole = {b"a" * size: "old", b"b" * size: "new"}.get(data, f"a part: {len(data)} bytes")
    outcomes.append([os.WIFSIGNALED(status) and os.WTERMSIG(status), whole])
    if os.WIFEXITED(status):
        break
print(json.dumps(outcomes))
"""

# Imports first: a user who owns nothing may not be able to read this checkout.
WRITES_AS_NOBODY = """
import json, os, sys
from pathlib import Path
from flatout.records.atomic import ensure_writable, write_atomically
from flatout.records.errors import CannotWrite
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
said = []
for attempt in (
    lambda: write_atomically(Path(sys.argv[1]), b"new"),
    lambda: ensure_writable(Path(sys.argv[1]).parent, remedy="elsewhere"),
):
    try:
        attempt()
        said.append("written")
    except CannotWrite as error:
        said.append(error.received)
print(json.dumps(said))
"""

FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from flatout.records.atomic import write_atomically
from flatout.records.errors import CannotWrite
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    write_atomically(Path(sys.argv[1]), b"b" * 100_000)
except CannotWrite as error:
    print(error.received)
"""


def run(script: str, *words: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, words)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.strip()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can reach; pytest's own they cannot."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    for path in (folder, *folder.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(folder)


def test_sigkill_before_any_line_of_a_write_leaves_the_old_or_the_new_file(tmp_path: Path) -> None:
    outcomes: list[list[Any]] = json.loads(run(KILLED_AT_EVERY_LINE, tmp_path / "file", 70_000))
    *killed, (last_signal, last_content) = outcomes
    assert last_signal is False, "the last child was to end by itself"
    assert last_content == "new"
    assert {died for died, _ in killed} == {signal.SIGKILL.value}
    contents = [content for _, content in killed]
    assert contents[0] == "old"
    assert set(contents) <= {"old", "new"}
    assert contents == sorted(contents, reverse=True), "once new, always new"


def test_sigkill_at_random_moments_leaves_a_whole_file_and_later_writes_work(tmp_path: Path) -> None:
    file = tmp_path / "file"
    size = 300_000
    write_atomically(file, b"a" * size)
    moments = random.Random(29)
    for _ in range(6):
        child = subprocess.Popen(
            [sys.executable, "-c", REWRITER, str(file), str(size)], stdout=subprocess.PIPE
        )
        with child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            try:
                child.wait(timeout=moments.uniform(0.001, 0.08))
            except subprocess.TimeoutExpired:
                child.kill()
        assert child.returncode == -signal.SIGKILL
        assert file.read_bytes() in (b"a" * size, b"b" * size)
    write_atomically(file, b"after all")
    assert file.read_bytes() == b"after all"


def test_the_data_is_on_disk_before_the_name_points_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    happened: list[tuple[str, int, int]] = []
    real_fsync, real_replace = os.fsync, os.replace
    # A thread that another test has left behind may write, too.
    here = threading.get_ident()

    def fsync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        if threading.get_ident() == here:
            happened.append(("sync", found.st_ino, found.st_size if stat.S_ISREG(found.st_mode) else 0))
        real_fsync(descriptor)

    def replace(source: Any, target: Any) -> None:
        if threading.get_ident() == here:
            happened.append(("rename", Path(source).stat().st_ino, 0))
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    write_atomically(file, b"x" * 5000)
    inode = file.stat().st_ino
    assert happened == [("sync", inode, 5000), ("rename", inode, 0), ("sync", tmp_path.stat().st_ino, 0)]


@pytest.mark.parametrize("limit", [0, 10, 4096, 99_999])
def test_a_full_disk_leaves_the_old_file_and_no_temporary(tmp_path: Path, limit: int) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"old")
    said = run(FULL_DISK, file, limit)
    assert said == f"cannot write {file}: File too large"
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_read_only_folder_leaves_the_old_file_and_no_temporary(open_folder: Path) -> None:
    file = open_folder / "file"
    file.write_bytes(b"old")
    open_folder.chmod(0o555)
    said = json.loads(run(WRITES_AS_NOBODY, file))
    assert said == [
        f"cannot write {file}: Permission denied",
        f"cannot write {open_folder}: Permission denied",
    ]
    assert file.read_bytes() == b"old"
    assert list(open_folder.iterdir()) == [file]


def test_a_folder_that_may_be_written_but_not_read_takes_the_file(open_folder: Path) -> None:
    dropbox = open_folder / "dropbox"
    dropbox.mkdir()
    dropbox.chmod(0o333)
    assert json.loads(run(WRITES_AS_NOBODY, dropbox / "file")) == ["written", "written"]
    dropbox.chmod(0o755)
    assert [path.read_bytes() for path in dropbox.iterdir()] == [b"new"]


def test_a_parent_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "parent").write_bytes(b"a file")
    with pytest.raises(CannotWrite):
        write_atomically(tmp_path / "parent" / "child", b"new")
    with pytest.raises(CannotWrite, match="elsewhere"):
        ensure_writable(tmp_path / "parent", remedy="elsewhere")
    assert (tmp_path / "parent").read_bytes() == b"a file"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc here")
def test_a_file_system_that_takes_no_files_is_refused() -> None:
    with pytest.raises(CannotWrite, match="/proc/flatout"):
        write_atomically(Path("/proc/flatout"), b"new")


def test_a_folder_in_the_files_place_is_refused_and_no_temporary_stays(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    (taken / "inside").mkdir(parents=True)
    with pytest.raises(CannotWrite):
        write_atomically(taken, b"new")
    assert list(tmp_path.iterdir()) == [taken]
    assert (taken / "inside").is_dir()


def test_an_interrupt_in_mid_write_leaves_no_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"old")

    def interrupted(_: int) -> None:
        assert len(list(tmp_path.iterdir())) == 2, "the temporary file is there by now"
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(file, b"new")
    assert list(tmp_path.iterdir()) == [file]
    assert file.read_bytes() == b"old"


def test_the_given_remedy_is_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "parent").write_bytes(b"")
    with pytest.raises(CannotWrite) as refused:
        write_atomically(tmp_path / "parent" / "child", b"", remedy="--no-cache")
    assert refused.value.remedy == "--no-cache"
    assert refused.value.exit_code == 3


def test_folders_on_the_way_are_made(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b" / "file"
    write_atomically(file, b"data")
    assert file.read_bytes() == b"data"


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002, 0o000])
def test_the_files_mode_follows_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_atomically(tmp_path / "file", b"data")
        assert os.umask(mask) == mask, "the umask itself is untouched"
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666 & ~mask


def test_ensure_writable_makes_the_folder_and_leaves_it_empty(tmp_path: Path) -> None:
    ensure_writable(tmp_path / "new" / "folder", remedy="none")
    assert list((tmp_path / "new" / "folder").iterdir()) == []


def test_a_link_stays_one_and_its_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    for target in ("there.toml", "not-yet.toml"):
        link = tmp_path / target
        link.symlink_to(Path("shared") / target)
    (tmp_path / "shared" / "there.toml").write_bytes(b"old")
    for target in ("there.toml", "not-yet.toml"):
        write_atomically(tmp_path / target, b"new")
        assert (tmp_path / target).is_symlink()
        assert (tmp_path / "shared" / target).read_bytes() == b"new"
    assert sorted(entry.name for entry in (tmp_path / "shared").iterdir()) == ["not-yet.toml", "there.toml"]


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(CannotWrite):
        write_atomically(tmp_path / "a", b"x")


def test_a_pipe_takes_the_bytes_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(pipe, b"page")
    assert os.read(reading, 99) == b"page"
    os.close(reading)
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert [entry.name for entry in tmp_path.iterdir()] == ["pipe"]
