"""Redirected files: seen by the trial as it wrote them, and the user's own left as they were.

Everything runs in child processes: an audit hook cannot be taken off again. A child installs the redirection
at its start, through a sitecustomize, as the hook does, so that its own children have it as well.
"""
# Files are written in every way there is, as people write them.
# ruff: noqa: BLE001, PTH101, PTH102, PTH103, PTH104, PTH105, PTH106, PTH107, PTH108, PTH109, PTH112, PTH115, PTH116
# ruff: noqa: PTH118, PTH119, PTH120, PTH123, PTH207, PTH208, PTH211, SIM115, UP020

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parents[3] / "src"
BREACH = 97

SITE = """
import json, os
from pathlib import Path

def tell(kind, what):
    with open(os.environ["TOLD"], "a") as file:
        file.write(json.dumps([kind, what]) + "\\n")

def breach(what):
    tell("breach", what)
    os._exit(97)

taken = (os.rename, os.open, open)  # before anything is replaced, where no one finds them
from flatout.inside.redirect import install_redirect
install_redirect(
    Path(os.environ["SHADOW"]), [Path(os.environ["ALLOWED"])], breach, lambda name: tell("program", name)
)
"""


class Trial:
    """A user's folder, and children that run in it under the redirection."""

    def __init__(self, root: Path) -> None:
        self.root, self.user, self.allowed, self.shadow = (
            root,
            root / "user",
            root / "allowed",
            root / "trial" / "shadow",
        )
        for folder in (self.user, self.allowed, root / "site", root / "trial"):
            folder.mkdir(parents=True)
        (root / "site" / "sitecustomize.py").write_text(SITE)
        self.told_file = self.allowed / "told.jsonl"

    def run(self, code: str, *, python: str = sys.executable, **environment: str) -> Any:
        """What the code left in `result`."""
        answer = self.allowed / "answer.json"
        answer.unlink(missing_ok=True)
        code = f"import os, sys\nfrom pathlib import Path\n{code}\n"
        code += f"import json; Path({str(answer)!r}).write_text(json.dumps(result))\n"
        done = self.start(code, python=python, **environment)
        assert done.returncode == 0, (done.stdout, done.stderr, self.told("breach"))
        return json.loads(answer.read_text())

    def start(self, code: str, *, python: str = sys.executable, **environment: str) -> Any:
        variables = {
            "PYTHONPATH": os.pathsep.join([str(self.root / "site"), str(SOURCE)]),
            "TOLD": str(self.told_file),
            "SHADOW": str(self.shadow),
            "ALLOWED": str(self.allowed),
            "TMPDIR": str(self.allowed),
            **environment,
        }
        return subprocess.run(
            [python, "-c", code],
            cwd=self.user,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=250,
        )

    def told(self, kind: str) -> list[str]:
        lines = self.told_file.read_text().splitlines() if self.told_file.exists() else []
        return [what for told, what in map(json.loads, lines) if told == kind]


def snapshot(folder: Path) -> dict[str, Any]:
    """Every file below: kind, mode, time of change, content. Two that are equal show no trace."""
    seen: dict[str, Any] = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        found = path.lstat()
        content: Any = None
        if path.is_symlink():
            content = os.readlink(path)
        elif path.is_file():
            content = path.read_bytes()
        seen[str(path.relative_to(folder))] = (found.st_mode, found.st_mtime_ns, found.st_ino, content)
    return seen


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path)


def lay_out(folder: Path) -> None:
    """What a user's folder holds before the trial."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "old.txt").write_text("old\n")
    (folder / "old.txt").chmod(0o640)
    (folder / "kept").mkdir()
    (folder / "kept" / "deep.txt").write_text("deep\n")
    (folder / "link.txt").symlink_to("old.txt")
    for path in (folder / "old.txt", folder / "kept" / "deep.txt", folder / "kept", folder):
        os.utime(path, ns=(10**18, 10**18))


# Ways of writing. Each gets a folder, writes into it, and returns what it reads back and what that must be.

Way = Callable[[Path], tuple[Any, Any]]


def way_open_w(here: Path) -> tuple[Any, Any]:
    with open(here / "old.txt", "w") as file:
        file.write("new")
    return open(here / "old.txt").read(), "new"


def way_open_a(here: Path) -> tuple[Any, Any]:
    with open(here / "old.txt", "a") as file:
        file.write("new")
    return open(here / "old.txt").read(), "old\nnew"


def way_open_x(here: Path) -> tuple[Any, Any]:
    with open(here / "x.txt", "x") as file:
        file.write("new")
    with pytest.raises(FileExistsError):
        open(here / "old.txt", "x")
    with pytest.raises(FileExistsError):
        open(here / "x.txt", "x")
    os.symlink("nothing", here / "dangling")
    with pytest.raises(FileExistsError):
        open(here / "dangling", "x")
    return open(here / "x.txt").read(), "new"


def way_open_update(here: Path) -> tuple[Any, Any]:
    with open(here / "old.txt", "r+b") as file:
        file.seek(1)
        file.write(b"LD")
    found = (here / "old.txt").stat()
    return ((here / "old.txt").read_bytes().decode(), found.st_mode & 0o777), ("oLD\n", 0o640)


def way_open_bytes_path(here: Path) -> tuple[Any, Any]:
    name = os.fsencode(here / "bytes.txt")
    with open(name, "w") as file:
        file.write("new")
    assert os.listdir(os.fsencode(here)).count(b"bytes.txt") == 1
    assert all(isinstance(entry.path, bytes) for entry in os.scandir(os.fsencode(here)))
    os.symlink(b"bytes.txt", os.fsencode(here / "new link"))
    assert os.readlink(os.fsencode(here / "new link")) == b"bytes.txt"
    return open(name).read(), "new"


def way_write_text(here: Path) -> tuple[Any, Any]:
    (here / "old.txt").write_text("new")
    return (here / "old.txt").read_text(), "new"


def way_relative_with_dots(here: Path) -> tuple[Any, Any]:
    os.chdir(here / "kept")
    Path("../kept/./../new.txt").write_text("new")
    os.chdir(here)
    return Path("new.txt").read_text(), "new"


def way_os_open(here: Path) -> tuple[Any, Any]:
    descriptor = os.open(here / "old.txt", os.O_RDWR)
    os.write(descriptor, b"NEW")
    os.close(descriptor)
    return (here / "old.txt").read_text(), "NEW\n"


def way_os_open_in_folder(here: Path) -> tuple[Any, Any]:
    folder = os.open(here, os.O_RDONLY)
    descriptor = os.open("old.txt", os.O_WRONLY | os.O_TRUNC, dir_fd=folder)
    os.write(descriptor, b"new")
    os.close(descriptor)
    os.mkdir("made", dir_fd=folder)
    os.rename("kept/deep.txt", "made/deep.txt", src_dir_fd=folder, dst_dir_fd=folder)
    os.unlink("link.txt", dir_fd=folder)
    back = os.stat("old.txt", dir_fd=folder).st_size, sorted(os.listdir(folder)), os.listdir("made")
    os.close(folder)
    return back, (3, ["kept", "made", "old.txt"], ["deep.txt"])


def way_through_a_link(here: Path) -> tuple[Any, Any]:
    (here / "link.txt").write_text("new")
    return ((here / "old.txt").read_text(), (here / "link.txt").is_symlink()), ("new", True)


def way_makedirs(here: Path) -> tuple[Any, Any]:
    os.makedirs(here / "a" / "b")
    os.makedirs(here / "a" / "b", exist_ok=True)
    (here / "a" / "b" / "c.txt").write_text("new")
    found = sorted(str(path.relative_to(here)) for path in here.rglob("*"))
    return found, ["a", "a/b", "a/b/c.txt", "kept", "kept/deep.txt", "link.txt", "old.txt"]


def way_change_into_a_new_folder(here: Path) -> tuple[Any, Any]:
    (here / "run").mkdir()
    os.chdir(here / "run")
    Path("log.txt").write_text("new")
    back = (
        os.getcwd() == str(here / "run"),
        Path("../old.txt").read_text(),
        (here / "run/log.txt").read_text(),
    )
    program = subprocess.run(["cat", "log.txt"], cwd=here / "run", capture_output=True, text=True).stdout
    os.chdir(here)
    return (*back, program), (True, "old\n", "new", "new")


def way_remove(here: Path) -> tuple[Any, Any]:
    os.remove(here / "old.txt")
    with pytest.raises(FileNotFoundError):
        open(here / "old.txt")
    with pytest.raises(FileNotFoundError):
        os.remove(here / "old.txt")
    seen = sorted(os.listdir(here)), (here / "old.txt").exists(), (here / "link.txt").exists()
    (here / "old.txt").write_text("born again")
    return (*seen, (here / "link.txt").read_text()), (["kept", "link.txt"], False, False, "born again")


def way_remove_and_make_a_folder(here: Path) -> tuple[Any, Any]:
    os.remove(here / "kept" / "deep.txt")
    os.rmdir(here / "kept")
    assert not (here / "kept").exists()
    os.mkdir(here / "kept")
    return (os.listdir(here / "kept"), (here / "kept" / "deep.txt").exists()), ([], False)


def way_rmdir_of_a_full_folder(here: Path) -> tuple[Any, Any]:
    with pytest.raises(OSError, match="not empty"):
        os.rmdir(here / "kept")
    return os.listdir(here / "kept"), ["deep.txt"]


def way_rename(here: Path) -> tuple[Any, Any]:
    os.rename(here / "old.txt", here / "older.txt")
    os.rename(here / "kept", here / "moved")
    back = sorted(os.listdir(here)), (here / "older.txt").read_text(), (here / "moved/deep.txt").read_text()
    os.mkdir(here / "kept")
    os.rename(here / "moved", here / "kept")
    os.rename(here / "kept", here / "moved")
    os.mkdir(here / "kept")
    anew = os.listdir(here / "kept"), (here / "kept" / "deep.txt").exists()
    return (*back, *anew), (["link.txt", "moved", "older.txt"], "old\n", "deep\n", [], False)


def way_rename_over_each_other(here: Path) -> tuple[Any, Any]:
    with pytest.raises(IsADirectoryError):
        os.rename(here / "old.txt", here / "kept")
    with pytest.raises(NotADirectoryError):
        os.rename(here / "kept", here / "old.txt")
    with pytest.raises(FileNotFoundError):
        os.rename(here / "nothing", here / "old.txt")
    with pytest.raises(OSError, match="Invalid"):
        os.rename(here / "kept", here / "kept" / "inside")
    os.replace(here / "kept" / "deep.txt", here / "old.txt")
    return ((here / "old.txt").read_text(), os.listdir(here / "kept")), ("deep\n", [])


def way_temporary_file_and_replace(here: Path) -> tuple[Any, Any]:
    import tempfile

    with tempfile.NamedTemporaryFile("w", dir=here, delete=False) as file:
        file.write("new")
    with tempfile.TemporaryFile("w+", dir=here) as nameless:
        nameless.write("x")
    if hasattr(os, "O_TMPFILE"):
        os.close(os.open(here, os.O_TMPFILE | os.O_RDWR))
    descriptor, other = tempfile.mkstemp(dir=here)
    os.close(descriptor)
    os.unlink(other)
    with tempfile.TemporaryDirectory(dir=here) as folder:
        Path(folder, "x").write_text("x")
    os.replace(file.name, here / "old.txt")
    back = (here / "old.txt").read_text(), sorted(os.listdir(here))
    return back, ("new", ["kept", "link.txt", "old.txt"])


def way_shutil_copy(here: Path) -> tuple[Any, Any]:
    import shutil

    shutil.copy2(here / "kept" / "deep.txt", here / "old.txt")
    shutil.copytree(here / "kept", here / "copy")
    return ((here / "old.txt").read_text(), os.listdir(here / "copy")), ("deep\n", ["deep.txt"])


def way_shutil_move(here: Path) -> tuple[Any, Any]:
    import shutil

    shutil.move(here / "kept", here / "moved")
    shutil.move(str(here / "old.txt"), str(here / "moved"))
    return (sorted(os.listdir(here)), sorted(os.listdir(here / "moved"))), (
        ["link.txt", "moved"],
        ["deep.txt", "old.txt"],
    )


def way_shutil_rmtree(here: Path) -> tuple[Any, Any]:
    import shutil

    (here / "kept" / "new").mkdir()
    (here / "kept" / "new" / "x").write_text("x")
    shutil.rmtree(here / "kept")
    shutil.rmtree(here / "none", ignore_errors=True)
    return (here / "kept").exists(), False


def way_links(here: Path) -> tuple[Any, Any]:
    import shutil

    os.symlink("old.txt", here / "latest")
    os.symlink(here / "kept", here / "folder", target_is_directory=True)
    (here / "folder" / "deep.txt").write_text("new")
    os.utime(here / "folder", (1, 1), follow_symlinks=False)
    os.lchown(here / "folder", -1, -1)
    shutil.copytree(here, here / "copy", symlinks=True)
    os.link(here / "old.txt", here / "hard")
    (here / "latest").write_text("through")
    with pytest.raises(FileExistsError):
        os.symlink("x", here / "old.txt")
    back = (here / "kept/deep.txt").read_text(), os.readlink(here / "latest"), (here / "hard").read_text()
    return (*back, os.path.realpath(here / "latest") == str(here / "old.txt")), (
        *("new", "old.txt", "through"),
        True,
    )


def way_metadata(here: Path) -> tuple[Any, Any]:
    os.chmod(here / "old.txt", 0o600)
    os.utime(here / "old.txt", (5, 5))
    os.truncate(here / "old.txt", 1)
    os.utime(here / "kept", (7, 7))
    os.chmod(here / "kept" / "deep.txt", 0o600)
    found = os.stat(here / "old.txt")
    back = found.st_mode & 0o777, found.st_size, (here / "old.txt").read_text()
    return (*back, os.stat(here / "kept" / "deep.txt").st_mode & 0o777), (0o600, 1, "o", 0o600)


def way_fifo(here: Path) -> tuple[Any, Any]:
    os.mkfifo(here / "pipe")
    return (here / "pipe").is_fifo(), True


def way_sqlite(here: Path) -> tuple[Any, Any]:
    import sqlite3

    for name, more in ((here / "new.db", {}), (f"file:{here / 'uri.db'}?mode=rwc", {"uri": True})):
        connection = sqlite3.connect(name, **more)  # type: ignore[call-overload]
        connection.execute("create table t (v)")
        connection.execute("insert into t values (1)")
        connection.commit()
        connection.close()
    sqlite3.connect(":memory:").close()
    rows = sqlite3.connect(here / "new.db").execute("select v from t").fetchall()
    return (rows, (here / "uri.db").stat().st_size > 0), ([(1,)], True)


def way_logging(here: Path) -> tuple[Any, Any]:
    import logging

    handler = logging.FileHandler(here / "old.txt")
    logging.getLogger("way").addHandler(handler)
    logging.getLogger("way").error("new")
    handler.close()
    return (here / "old.txt").read_text(), "old\nnew\n"


def way_archives(here: Path) -> tuple[Any, Any]:
    import bz2
    import gzip
    import lzma
    import tarfile
    import zipfile

    with zipfile.ZipFile(here / "a.zip", "w") as archive:
        archive.write(here / "old.txt", "old.txt")
    with zipfile.ZipFile(here / "a.zip", "a") as archive:
        archive.writestr("b", "b")
    with tarfile.open(here / "a.tar.gz", "w:gz") as tar:
        tar.add(here / "kept", "kept")
    back = []
    for module in (gzip, bz2, lzma):
        with module.open(here / module.__name__, "wb") as file:
            file.write(b"new")
        back.append(module.open(here / module.__name__).read().decode())
    return (back, zipfile.ZipFile(here / "a.zip").namelist(), tarfile.open(here / "a.tar.gz").getnames()), (
        ["new"] * 3,
        ["old.txt", "b"],
        ["kept", "kept/deep.txt"],
    )


def way_csv_pickle_json_shelve(here: Path) -> tuple[Any, Any]:
    import csv
    import pickle
    import shelve

    with open(here / "t.csv", "w", newline="") as file:
        csv.writer(file).writerow([1, 2])
    with open(here / "t.pkl", "wb") as raw:
        pickle.dump({"a": 1}, raw)
    with open(here / "t.pkl", "rb") as raw:
        back = pickle.load(raw)
    import dbm.dumb

    with shelve.Shelf(dbm.dumb.open(str(here / "shelf"))) as shelf:
        shelf["a"] = 1
    return ((here / "t.csv").read_text(), back), ("1,2\n", {"a": 1})


def way_raw_file(here: Path) -> tuple[Any, Any]:
    import io

    with io.FileIO(here / "old.txt", "w") as file:
        file.write(b"new")
    with io.open(here / "old.txt", "rb") as opened:
        raw = opened.raw  # type: ignore[attr-defined]
        return (isinstance(file, io.FileIO), isinstance(raw, io.FileIO), opened.read()), (True, True, b"new")


def way_mmap(here: Path) -> tuple[Any, Any]:
    import mmap

    with open(here / "old.txt", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[:3] = b"NEW"
    return (here / "old.txt").read_text(), "NEW\n"


def way_import_of_a_written_module(here: Path) -> tuple[Any, Any]:
    import importlib

    (here / "package").mkdir()
    (here / "package" / "__init__.py").write_text("")
    (here / "package" / "written.py").write_text("answer = 42")
    sys.path.insert(0, str(here))
    importlib.invalidate_caches()
    module = importlib.import_module("package.written")
    sys.path.remove(str(here))
    return (module.answer, module.__file__), (42, str(here / "package" / "written.py"))


def way_import_of_a_compiled_module(here: Path) -> tuple[Any, Any]:
    import _queue
    import ctypes
    import shutil

    if not getattr(_queue, "__file__", None):
        return None, None  # built into this Python: there is nothing to copy
    copy = shutil.copy(_queue.__file__, here)
    spec = importlib.util.spec_from_file_location("_queue", copy)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return (module.__file__, hasattr(module, "SimpleQueue"), ctypes.CDLL(copy)._name == copy), (
        copy,
        True,
        True,
    )


def way_glob_and_walk(here: Path) -> tuple[Any, Any]:
    import glob

    (here / "kept" / "new.txt").write_text("new")
    os.remove(here / "kept" / "deep.txt")
    walked = sorted(name for _, _, names in os.walk(here) for name in names)
    fwalked = sorted(name for _, _, names, _ in os.fwalk(here) for name in names)
    globbed = sorted(os.path.basename(name) for name in glob.glob(f"{here}/**/*.txt", recursive=True))
    listed = sorted(path.name for path in here.glob("**/*.txt"))
    return (walked, fwalked, globbed, listed), tuple([["link.txt", "new.txt", "old.txt"]] * 4)


def way_locks(here: Path) -> tuple[Any, Any]:
    import fcntl

    with open(here / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with open(here / "lock") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return (here / "lock").exists(), True


def way_numpy(here: Path) -> tuple[Any, Any]:
    import numpy as np

    values = np.arange(4.0)
    np.save(here / "a.npy", values)
    np.savez(here / "b.npz", values=values)
    np.savetxt(here / "c.txt", values)
    values.tofile(here / "d.bin")
    mapped = np.memmap(here / "e.bin", dtype=np.float64, mode="w+", shape=4)
    mapped[:] = values
    mapped.flush()
    again = np.memmap(here / "e.bin", dtype=np.float64, mode="r+")
    again[0] = 9
    again.flush()
    back = [
        np.load(here / "a.npy"),
        np.load(here / "a.npy", mmap_mode="r"),
        np.load(here / "b.npz")["values"],
        np.loadtxt(here / "c.txt"),
        np.fromfile(here / "d.bin"),
    ]
    return ([list(map(float, one)) for one in back], float(np.fromfile(here / "e.bin")[0])), (
        [[0.0, 1.0, 2.0, 3.0]] * 5,
        9.0,
    )


def way_numpy_over_a_real_file(here: Path) -> tuple[Any, Any]:
    import numpy as np

    mapped = np.memmap(here / "old.txt", dtype=np.uint8, mode="r+")
    mapped[0] = ord("O")
    mapped.flush()
    return (here / "old.txt").read_text(), "Old\n"


def way_torch_save(here: Path) -> tuple[Any, Any]:
    import torch

    back = []
    for name, more in (
        ("old.txt", {}),
        ("legacy.pt", {"_use_new_zipfile_serialization": False}),
        ("mödel.pt", {}),
    ):
        torch.save({"a": torch.arange(3)}, here / name, **more)
        back.append(torch.load(here / name)["a"].tolist())
    back.append(torch.load(here / "old.txt", mmap=True)["a"].tolist())
    back.append(torch.load(str(here / "link.txt"))["a"].tolist())
    with pytest.raises(RuntimeError, match="does not exist"):
        torch.save({}, here / "no folder" / "a.pt")
    return back, [[0, 1, 2]] * 5


def way_torch_jit(here: Path) -> tuple[Any, Any]:
    import warnings

    import torch.jit.mobile

    warnings.simplefilter("ignore")
    module = torch.jit.script(torch.nn.Linear(2, 2))
    torch.jit.save(module, here / "a.pt")
    module.save(str(here / "b.pt"))
    torch.jit.load(here / "b.pt")
    torch._C.PyTorchFileReader(str(here / "a.pt"))
    torch.jit.script(_double).save(str(here / "function.pt"))
    module._save_for_lite_interpreter(str(here / "lite.ptl"))
    lite = torch.jit.mobile._load_for_lite_interpreter(str(here / "lite.ptl"))
    made = sorted(name for name in os.listdir(here) if ".pt" in name)
    shapes = [list(one(torch.ones(1, 2)).shape) for one in (torch.jit.load(str(here / "a.pt")), lite)]
    return (shapes, made), ([[1, 2], [1, 2]], ["a.pt", "b.pt", "function.pt", "lite.ptl"])


def _double(number: int) -> int:
    return number * 2


def way_torch_storage_of_a_file(here: Path) -> tuple[Any, Any]:
    import torch

    tensor = torch.from_file(str(here / "old.txt"), shared=True, size=4, dtype=torch.uint8)
    tensor[0] = ord("O")
    storage = torch.UntypedStorage.from_file(str(here / "new.bin"), True, 8)
    storage[0] = 7
    return ((here / "old.txt").read_text(), (here / "new.bin").read_bytes()[0]), ("Old\n", 7)


def way_torch_profiler(here: Path) -> tuple[Any, Any]:
    import torch

    observer = torch.profiler.ExecutionTraceObserver().register_callback(str(here / "graph.json"))
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], execution_trace_observer=observer
    ) as profiler:
        torch.ones(2).sum()
    profiler.export_chrome_trace(str(here / "trace.json"))
    return ("traceEvents" in (here / "trace.json").read_text(), (here / "graph.json").exists()), (True, True)


def way_torch_file_store(here: Path) -> tuple[Any, Any]:
    import torch.distributed

    store = torch.distributed.FileStore(str(here / "store"), 1)
    store.set("a", "b")
    return (store.get("a"), (here / "store").exists()), (b"b", True)


def way_torch_distributed_checkpoint(here: Path) -> tuple[Any, Any]:
    import warnings

    import torch
    import torch.distributed.checkpoint as dcp

    warnings.simplefilter("ignore")
    dcp.save({"a": torch.arange(3)}, checkpoint_id=here / "checkpoint", no_dist=True)
    state = {"a": torch.zeros(3, dtype=torch.int64)}
    dcp.load(state, checkpoint_id=here / "checkpoint", no_dist=True)
    return state["a"].tolist(), [0, 1, 2]


def way_safetensors(here: Path) -> tuple[Any, Any]:
    import safetensors.numpy
    import safetensors.torch
    import torch

    safetensors.torch.save_file({"a": torch.arange(3)}, here / "old.txt")
    safetensors.torch.save_file({"a": torch.arange(3)}, str(here / "new.safetensors"))
    safetensors.numpy.save_file({"a": torch.arange(3).numpy()}, here / "np.safetensors")
    back = [safetensors.torch.load_file(here / name)["a"].tolist() for name in ("old.txt", "new.safetensors")]
    with safetensors.safe_open(here / "np.safetensors", framework="np") as opened:
        back.append(opened.get_tensor("a").tolist())
    return back, [[0, 1, 2]] * 3


def way_summary_writer(here: Path) -> tuple[Any, Any]:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(here / "runs")
    writer.add_scalar("loss", 1.0, 0)
    writer.close()
    (name,) = os.listdir(here / "runs")
    return (here / "runs" / name).stat().st_size > 40, True


def way_tokenizers(here: Path) -> tuple[Any, Any]:
    import tokenizers

    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    made.save(str(here / "tokenizer.json"))
    made.model.save(str(here))
    return (
        tokenizers.Tokenizer.from_file(str(here / "tokenizer.json")).get_vocab_size(),
        (here / "vocab.json").exists(),
    ), (1, True)


def way_h5py(here: Path) -> tuple[Any, Any]:
    import h5py

    with h5py.File(here / "a.h5", "w") as file:
        file["a"] = [1, 2]
    with h5py.File(here / "a.h5", "a") as file:
        file["b"] = [3]
    return sorted(h5py.File(here / "a.h5")), ["a", "b"]


def way_pyarrow(here: Path) -> tuple[Any, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"a": [1, 2]})
    pq.write_table(table, here / "a.parquet")
    with pa.OSFile(str(here / "a.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as out:
        out.write_table(table)
    rows = pa.ipc.open_file(pa.memory_map(str(here / "a.arrow"))).read_all().num_rows
    pa.create_memory_map(str(here / "map"), 16)
    return (rows, (here / "a.parquet").stat().st_size > 0, (here / "map").stat().st_size), (2, True, 16)


def way_cv2(here: Path) -> tuple[Any, Any]:
    import cv2
    import numpy as np

    cv2.imwrite(str(here / "a.png"), np.zeros((2, 3, 3), np.uint8))
    return cv2.imread(str(here / "a.png")).shape, (2, 3, 3)


WAYS: dict[str, Way] = {
    name.removeprefix("way_"): way for name, way in globals().items() if name[:4] == "way_"
}
NEEDS = {
    "safetensors": "safetensors",
    "summary_writer": "tensorboard",
    "tokenizers": "tokenizers",
    "h5py": "h5py",
    "pyarrow": "pyarrow",
    "cv2": "cv2",
}


def go_all_ways(root: str, answer: str) -> None:
    """In the child: every way in a folder of its own, one after the other."""
    import traceback

    results: dict[str, Any] = {}
    for name, way in WAYS.items():
        os.chdir(os.path.join(root, name))
        try:
            back, wanted = way(Path(root) / name)
            results[name] = None if back == wanted else f"{back} is not {wanted}"
        except BaseException:
            results[name] = traceback.format_exc()
    Path(answer).write_text(json.dumps(results))


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Runs them all in one child, and compares each folder before and after."""
    trial = Trial(tmp_path_factory.mktemp("ways"))
    for name in WAYS:
        lay_out(trial.user / name)
    before = {name: snapshot(trial.user / name) for name in WAYS}
    answer = trial.allowed / "ways.json"
    done = trial.start(
        "import importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('ways', {__file__!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        f"module.go_all_ways({str(trial.user)!r}, {str(answer)!r})\n"
    )
    return {
        "before": before,
        "after": {name: snapshot(trial.user / name) for name in WAYS},
        "results": json.loads(answer.read_text()) if answer.exists() else {},
        "done": (done.returncode, done.stderr[-3000:], trial.told("breach")),
    }


@pytest.mark.parametrize("name", WAYS)
def test_a_way_of_writing_reads_back_and_leaves_no_trace(ways: dict[str, Any], name: str) -> None:
    needed = NEEDS.get(name, "torch" if name.startswith("torch") else None)
    if needed is not None and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    assert ways["done"][0] == 0, ways["done"]
    assert ways["results"][name] is None, ways["results"][name]
    assert ways["after"][name] == ways["before"][name]


def test_what_one_process_did_its_children_and_later_processes_see(trial: Trial) -> None:
    lay_out(trial.user)
    before = snapshot(trial.user)
    trial.run(
        "Path('new.txt').write_text('from the first')\n"
        "os.remove('old.txt'); os.rename('kept', 'moved')\n"
        "result = 0"
    )
    look = "[sorted(os.listdir('.')), Path('new.txt').read_text(), os.path.exists('old.txt')]"
    expected = [["link.txt", "moved", "new.txt"], "from the first", False]
    code = f"""
import multiprocessing, subprocess, json
def look():
    return {look}
def send(connection):
    connection.send(look())
if __name__ == "__main__":
    result = [look()]
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        if method == "fork":
            mine, theirs = context.Pipe()
            child = context.Process(target=send, args=(theirs,))
            child.start(); result.append(mine.recv()); child.join()
        else:
            done = subprocess.run([sys.executable, "-c", "import os, json; from pathlib import Path; "
                                   "Path('new.txt').write_text('from the child'); print(json.dumps({look}))"],
                                  capture_output=True, text=True)
            result.append(json.loads(done.stdout))
    result.append(Path('new.txt').read_text())
"""
    changed = [*expected]
    changed[1] = "from the child"
    assert trial.run(code) == [expected, expected, changed, "from the child"]
    assert snapshot(trial.user) == before


def test_processes_that_begin_at_once_do_not_lose_each_others_writes(trial: Trial) -> None:
    """All want the same real file copied, and the same folder, at the same time."""
    (trial.user / "log.txt").write_text("begun\n")
    before = snapshot(trial.user)
    result = trial.run(
        "import multiprocessing\n"
        "def work(barrier, rank):\n"
        "    barrier.wait()\n"
        "    for number in range(20):\n"
        "        with open('log.txt', 'a') as file: file.write(f'{rank} {number}\\n')\n"
        "        os.makedirs(f'deep/er/{number}', exist_ok=True)\n"
        "        Path(f'deep/er/{number}/{rank}').write_text('x')\n"
        "context = multiprocessing.get_context('fork')\n"
        "barrier = context.Barrier(6)\n"
        "children = [context.Process(target=work, args=(barrier, rank)) for rank in range(6)]\n"
        "for child in children: child.start()\n"
        "for child in children: child.join()\n"
        "result = [[child.exitcode for child in children],\n"
        "          sorted(Path('log.txt').read_text().splitlines()),\n"
        "          sum(len(names) for _, _, names in os.walk('deep'))]\n"
    )
    lines = sorted(["begun", *(f"{rank} {number}" for rank in range(6) for number in range(20))])
    assert result == [[0] * 6, lines, 120]
    assert snapshot(trial.user) == before


def test_spawned_processes_share_the_files(trial: Trial) -> None:
    (trial.user / "job.py").write_text(
        "import multiprocessing, os\n"
        "from pathlib import Path\n"
        "def work(rank):\n"
        "    Path(f'rank{rank}.txt').write_text(Path('begun.txt').read_text() + str(rank))\n"
        "if __name__ == '__main__':\n"
        "    Path('begun.txt').write_text('begun')\n"
        "    with multiprocessing.get_context('spawn').Pool(2) as pool:\n"
        "        pool.map(work, [0, 1])\n"
        "    print(sorted(path.name + path.read_text() for path in Path('.').glob('rank*')))\n"
    )
    before = snapshot(trial.user)
    done = trial.start("import runpy; runpy.run_path('job.py', run_name='__main__')")
    assert done.stdout == "['rank0.txtbegun0', 'rank1.txtbegun1']\n", (done.stderr, trial.told("breach"))
    assert snapshot(trial.user) == before


PAST_US = {
    "posix_rename": "import posix; posix.rename('old.txt', 'new.txt')",
    "posix_rename_out_of_the_shadow": (
        "import posix; Path('n').write_text('n'); "
        "posix.rename(os.environ['SHADOW'] + '/files' + os.getcwd() + '/n', 'old.txt')"
    ),
    "posix_open": "import posix; posix.open('old.txt', os.O_WRONLY | os.O_TRUNC)",
    "posix_open_of_a_new_file": "import posix; posix.open('new.txt', os.O_RDONLY | os.O_CREAT)",
    "posix_unlink": "import posix; posix.unlink('old.txt')",
    "posix_mkdir": "import posix; posix.mkdir('new')",
    "posix_rmdir": "import posix; posix.mkdir(os.environ['ALLOWED'] + '/x'); posix.rmdir('empty')",
    "posix_link": "import posix; posix.link('old.txt', 'new.txt')",
    "posix_symlink": "import posix; posix.symlink('old.txt', 'new.txt')",
    "posix_truncate": "import posix; posix.truncate('old.txt', 0)",
    "posix_chmod": "import posix; posix.chmod('old.txt', 0)",
    "posix_chown": "import posix; posix.chown('old.txt', -1, -1)",
    "posix_utime": "import posix; posix.utime('old.txt')",
    "posix_setxattr": "import posix; posix.setxattr('old.txt', 'user.a', b'1')",
    "posix_removexattr": "import posix; posix.removexattr('old.txt', 'user.a')",
    "posix_in_a_folder": "import posix; posix.mkdir('new', dir_fd=os.open('.', os.O_RDONLY))",
    "posix_through_proc": "import posix; posix.truncate('/proc/self/cwd/old.txt', 0)",
    "mode_of_an_open_file": "os.fchmod(os.open('old.txt', os.O_RDONLY), 0)",
    "real_open": "import _io; _io.open('old.txt', 'w')",
    "real_file": "import _io; _io.FileIO('old.txt', 'a')",
    "function_taken_early": "import sitecustomize; sitecustomize.taken[0]('old.txt', 'new.txt')",
    "open_taken_early": "import sitecustomize; sitecustomize.taken[2]('old.txt', 'w')",
    "sqlite_connection": "import sqlite3; sqlite3.Connection('new.db')",
    "socket": "import socket; socket.socket(socket.AF_UNIX).bind('new.sock')",
    "link_in_an_allowed_folder": (
        "import posix; os.symlink(os.getcwd(), os.environ['ALLOWED'] + '/l'); "
        "posix.truncate(os.environ['ALLOWED'] + '/l/old.txt', 0)"
    ),
    "caught_by_the_script": (
        "import posix\ntry:\n posix.unlink('old.txt')\nfinally:\n Path('f').write_text('x')"
    ),
}


@pytest.mark.parametrize("name", PAST_US)
def test_a_way_past_us_ends_the_process_before_it_happens(trial: Trial, name: str) -> None:
    if "xattr" in name and sys.platform != "linux":
        pytest.skip("Python has no such function here")
    lay_out(trial.user)
    (trial.user / "empty").mkdir()
    before = snapshot(trial.user)
    done = trial.start(f"import os, sys\nfrom pathlib import Path\n{PAST_US[name]}\nprint('went on')")
    assert (done.returncode, done.stdout) == (BREACH, ""), done.stderr
    assert len(trial.told("breach")) == 1
    assert snapshot(trial.user) == before


NOT_PAST_US = {
    "reading": "import posix; os.close(posix.open('old.txt', 0)); posix.listdir('.'); posix.stat('old.txt')",
    "allowed": "import posix; posix.mkdir(os.environ['ALLOWED'] + '/new')",
    "allowed_through_a_link": "import posix; posix.mkdir('way_in/new')",
    "devices": "open('/dev/null', 'w').write('x'); open('/dev/stdout', 'w'); open('/proc/self/fd/2', 'w')",
    "memory": (
        "import sqlite3; sqlite3.connect(':memory:'); sqlite3.connect(''); "
        "sqlite3.connect('file::memory:', uri=True)"
    ),
    "mode_of_a_new_file": "f = open('old.txt', 'w'); os.fchmod(f.fileno(), 0o600); os.utime(f.fileno())",
    "abstract_socket": (
        "import socket; socket.socket(socket.AF_UNIX).bind('\\0name' + os.environ['SHADOW'][-90:])"
    ),
    "pipe": (
        "import threading; threading.Thread(target=lambda: open('../pipe').read()).start(); "
        "open('../pipe', 'w').write('x')"
    ),
    "running_out_of_stack": (
        "def deeper(): os.stat('old.txt'); open('new.txt', 'w').close(); deeper()\n"
        "try: deeper()\nexcept RecursionError: pass"
    ),
    "compiling": (
        "import py_compile; py_compile.compile('code.py'); sys.path.insert(0, ''); "
        "sys.dont_write_bytecode = False; import code_of_mine"
    ),
}


@pytest.mark.parametrize("name", NOT_PAST_US)
def test_what_harms_nothing_goes_on(trial: Trial, name: str) -> None:
    lay_out(trial.user)
    (trial.user / "way_in").symlink_to(trial.allowed)
    for name_of_module in ("code.py", "code_of_mine.py"):
        (trial.user / name_of_module).write_text("")
    os.mkfifo(trial.root / "pipe")
    before = snapshot(trial.user)
    done = trial.start(f"import os, sys\nfrom pathlib import Path\n{NOT_PAST_US[name]}\nprint('went on')")
    assert (done.returncode, done.stdout) == (0, "went on\n"), (done.stderr, trial.told("breach"))
    assert trial.told("breach") == []
    assert snapshot(trial.user) == before


@pytest.mark.parametrize(
    "fault",
    [
        "redirect.View.writing = lambda *a, **k: 1 / 0",
        "redirect.View.copy_up = None",
        "import posix; posix.rename(os.environ['SHADOW'] + '/generation', os.environ['SHADOW'] + '/other')",
        "import posix; posix.rename(os.environ['SHADOW'] + '/files', os.environ['SHADOW'] + '/other')",
    ],
)
def test_a_failure_of_our_own_counts_as_a_breach(trial: Trial, fault: str) -> None:
    lay_out(trial.user)
    before = snapshot(trial.user)
    code = f"import os, sys\nfrom flatout.inside.redirect import shadow as redirect\n{fault}\n"
    done = trial.start(
        f"{code}try:\n open('old.txt', 'a').write('x')\nexcept Exception: pass\nprint('went on')"
    )
    assert (done.returncode, done.stdout) == (BREACH, ""), done.stderr
    assert snapshot(trial.user) == before


def test_a_library_that_we_can_no_longer_hold_counts_as_a_breach(trial: Trial) -> None:
    package = trial.user / "safetensors"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "_safetensors_rust.py").write_text("def serialize_to(path): pass")
    done = trial.start("import sys; sys.path.insert(0, '.'); import safetensors._safetensors_rust")
    assert done.returncode == BREACH, done.stderr
    assert "serialize_file" in trial.told("breach")[0]


def test_should_the_breach_be_survived_the_write_is_refused_all_the_same(trial: Trial) -> None:
    lay_out(trial.user)
    site = trial.root / "site" / "sitecustomize.py"
    site.write_text(site.read_text().replace("os._exit(97)", "pass"))
    refused = (
        "import posix\ntry:\n posix.unlink('old.txt')\nexcept PermissionError as error:\n result = str(error)"
    )
    assert "os.remove of 'old.txt'" in trial.run(refused)
    assert (trial.user / "old.txt").exists()


def test_programs_that_we_cannot_see_into_are_named_once(trial: Trial) -> None:
    (trial.user / "tool").write_text(f"#!{sys.executable}\nprint('a script for python')\n")
    (trial.user / "tool").chmod(0o755)
    trial.run(
        "import subprocess\n"
        "for _ in range(2): subprocess.run(['ls'], stdout=subprocess.DEVNULL)\n"
        "os.system('cat /dev/null')\n"
        "subprocess.run('head -c 1 /dev/null | wc -l', shell=True, stdout=subprocess.DEVNULL)\n"
        "subprocess.run([sys.executable, '-c', '1'])\n"
        "subprocess.run([sys.executable, '-u', '-c', '1', '-S'])\n"
        "subprocess.run(['./tool'], stdout=subprocess.DEVNULL)\n"
        "subprocess.run([sys.executable, '-S', '-c', '1'])\n"
        "subprocess.run([sys.executable, '-c', '1'], env={})\n"
        "os.spawnlp(os.P_WAIT, 'true', 'true')\n"
        "result = 0",
        FLATOUT_SESSION="",
    )
    name = Path(sys.executable).name
    assert trial.told("program") == [
        "ls",
        "cat",
        "head",
        f"{name} -S",
        f"{name} (without our environment)",
        "true",
    ]
    assert trial.told("breach") == []


def test_links_lead_where_the_trial_put_them(trial: Trial) -> None:
    lay_out(trial.user)
    (trial.user / "way_in").symlink_to(trial.allowed)
    (trial.allowed / "way_out").symlink_to(trial.user)
    (trial.allowed / "up").symlink_to("../user/kept")
    (trial.user / "far").mkdir()
    (trial.user / "far" / "near.txt").symlink_to("../old.txt")
    (trial.user / "empty.txt").write_text("as it was")
    before = snapshot(trial.user)
    result = trial.run(
        "allowed = Path(os.environ['ALLOWED'])\n"
        "Path('way_in/really.txt').write_text('really')\n"
        "(allowed / 'way_out' / 'old.txt').write_text('redirected')\n"
        "(allowed / 'up' / '..' / 'new.txt').write_text('up'); (allowed / 'up' / 'below').write_text('x')\n"
        "Path('/proc/self/cwd/proc.txt').write_text('proc')\n"
        "os.symlink(allowed, 'mine'); Path('mine/mine.txt').write_text('mine')\n"
        "os.remove('link.txt'); os.symlink('kept', 'link.txt')\n"
        "Path('link.txt/deep.txt').write_text('through')\n"
        "os.mkdir('made'); assert open('made/../far/../kept/deep.txt').read() == 'through'\n"
        "assert open('made/../far/near.txt').read() == 'redirected'\n"
        "assert Path('made/../empty.txt').read_text() == 'as it was'\n"
        "os.symlink('loop', 'loop')\n"
        "try: open('loop')\n"
        "except OSError as error: loop = error.strerror\n"
        "result = [Path('old.txt').read_text(), Path('new.txt').read_text(), Path('proc.txt').read_text(),"
        " Path('mine/really.txt').read_text(), Path('kept/deep.txt').read_text(), loop,"
        " os.path.realpath('mine/..') == str(allowed.parent), os.listdir('kept'),"
        " Path('far/near.txt').read_text()]"
    )
    assert result[:2] == ["redirected", "up"]
    assert result[2:6] == ["proc", "really", "through", "Too many levels of symbolic links"]
    assert result[6:] == [True, ["deep.txt", "below"], "redirected"]
    assert (trial.allowed / "really.txt").read_text() == "really"
    assert (trial.allowed / "mine.txt").read_text() == "mine"
    assert snapshot(trial.user) == before


def test_files_move_between_the_allowed_and_the_redirected(trial: Trial) -> None:
    lay_out(trial.user)
    (trial.allowed / "mine.txt").write_text("mine")
    before = snapshot(trial.user)
    result = trial.run(
        "allowed = Path(os.environ['ALLOWED'])\n"
        "os.replace(allowed / 'mine.txt', 'old.txt'); os.rename('kept', allowed / 'kept')\n"
        "os.link('old.txt', allowed / 'hard.txt')\n"
        "result = [Path('old.txt').read_text(), sorted(os.listdir('.'))]"
    )
    assert result == ["mine", ["link.txt", "old.txt"]]
    assert (trial.allowed / "kept" / "deep.txt").read_text() == "deep\n"
    assert (trial.allowed / "hard.txt").read_text() == "mine"
    assert not (trial.allowed / "mine.txt").exists()
    assert snapshot(trial.user) == before


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a second file system to move across")
def test_the_shadow_may_lie_on_another_file_system(
    trial: Trial, tmp_path_factory: pytest.TempPathFactory
) -> None:
    import tempfile

    lay_out(trial.user)
    before = snapshot(trial.user)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        if os.stat(elsewhere).st_dev == os.stat(trial.user).st_dev:
            pytest.skip("/dev/shm is on the same file system")
        trial.shadow = Path(elsewhere)
        (trial.allowed / "mine.txt").write_text("mine")
        result = trial.run(
            "allowed = os.environ['ALLOWED']\n"
            "os.replace(allowed + '/mine.txt', 'new.txt'); os.replace('old.txt', allowed + '/old.txt')\n"
            "os.link(allowed + '/old.txt', 'hard.txt')\n"
            "result = [Path('new.txt').read_text(), Path('hard.txt').read_text(), os.listdir(allowed)]"
        )
    assert result[:2] == ["mine", "old\n"]
    assert "mine.txt" not in result[2]
    assert (trial.allowed / "old.txt").read_text() == "old\n"
    assert snapshot(trial.user) == before


def test_a_database_goes_into_the_shadow_with_what_lies_beside_it(trial: Trial) -> None:
    import shutil
    import sqlite3

    writer = sqlite3.connect(trial.root / "writing.db")
    writer.execute("pragma journal_mode=wal")
    writer.execute("create table t (v)")
    writer.execute("insert into t values (7)")
    writer.commit()
    for end in ("", "-wal"):  # the row is in the second only
        shutil.copy(trial.root / f"writing.db{end}", trial.user / f"old.db{end}")
    writer.close()
    before = snapshot(trial.user)
    result = trial.run(
        "import sqlite3\n"
        "connection = sqlite3.connect('old.db')\n"
        "connection.execute('insert into t values (8)'); connection.commit()\n"
        "result = connection.execute('select v from t').fetchall()\n"
        "connection.close()\n"
    )
    assert result == [[7], [8]]
    assert snapshot(trial.user) == before


def test_errors_and_names_speak_of_the_scripts_own_paths(trial: Trial) -> None:
    lay_out(trial.user)
    result = trial.run(
        "import inspect, io, pickle, posix\n"
        "result = []\n"
        "Path('first').write_text('x'); os.path.exists('new.txt/x'); Path('new.txt').write_text('x')\n"
        "for what in (lambda: open('new.txt/x'), lambda: open('no/new.txt', 'w'), lambda: open('none.txt'),\n"
        "             lambda: os.mkdir('kept'),\n"
        "             lambda: os.open('old.txt/x', os.O_WRONLY), lambda: os.rename('none', 'new.txt'),\n"
        "             lambda: os.listdir('new.txt'), lambda: os.rmdir('new.txt'),\n"
        "             lambda: open('kept', 'w')):\n"
        "    try: what()\n"
        "    except OSError as error: result.append(f'{type(error).__name__} {error.filename}')\n"
        "for what in (lambda: os.stat(None), lambda: open('new.txt', 'q'), lambda: os.stat(),\n"
        "             lambda: open(1.5), lambda: os.stat('a\\0b'), lambda: os.mkdir('m', mode='x')):\n"
        "    try: what()\n"
        "    except (TypeError, ValueError) as error: result.append(type(error).__name__)\n"
        "class Held: stat = os.stat; opened = open\n"
        "result += [open('new.txt', 'a').name, Held().stat('new.txt').st_size,\n"
        "           Held().opened('new.txt').read(), open is io.open,\n"
        "           inspect.signature(os.replace) == inspect.signature(posix.replace),\n"
        "           pickle.loads(pickle.dumps([open, os.stat])) == [open, os.stat],\n"
        "           os.stat in os.supports_dir_fd]\n"
    )
    assert result[:9] == [
        "NotADirectoryError new.txt/x",
        "FileNotFoundError no/new.txt",
        "FileNotFoundError none.txt",
        "FileExistsError kept",
        "NotADirectoryError old.txt/x",
        "FileNotFoundError none",
        "NotADirectoryError new.txt",
        "NotADirectoryError new.txt",
        "IsADirectoryError kept",
    ]
    assert result[9:15] == ["TypeError", "ValueError", "TypeError", "TypeError", "ValueError", "TypeError"]
    assert result[15:] == ["new.txt", 1, "x", True, True, True, True]


def same_on_both(seed: int, redirected: Path, real: Path) -> list[Any]:
    """In the child: the same random operations on two equal folders, up to the first difference."""
    import random
    import shutil

    def write(mode: str) -> Callable[[str], None]:
        def call(path: str) -> None:
            with open(path, mode) as file:
                file.write("W")

        return call

    def kind(path: str) -> tuple[int, int]:
        found = os.lstat(path)
        return found.st_mode, 0 if os.path.isdir(path) else found.st_size

    one: list[Callable[[str], Any]] = [
        *(write(mode) for mode in ("w", "a", "x", "r+")),
        *(os.mkdir, os.remove, os.rmdir, shutil.rmtree, os.readlink, os.path.exists, kind),
        lambda path: sorted(os.listdir(path)),
        lambda path: sorted((entry.name, entry.is_dir(), entry.is_symlink()) for entry in os.scandir(path)),
        lambda path: open(path).read(),
        lambda path: os.truncate(path, 1),
    ]
    two: list[Callable[[str, str], Any]] = [
        *(os.rename, os.replace, os.link, shutil.copy),
        lambda old, new: os.symlink(os.path.relpath(old, os.path.dirname(new)), new),
    ]
    names = ["old.txt", "kept", "deep.txt", "link.txt", "new", "other", ".."]
    draw = random.Random(seed)
    done: list[Any] = []

    def path() -> str:
        there = [str(found.relative_to(real)) for found in sorted(real.rglob("*"))]
        if there and draw.random() < 0.6:
            return "/".join([draw.choice(there), *draw.sample(names, draw.choice([0, 0, 1]))])
        return "/".join(draw.sample(names, draw.choice([1, 2, 3])))

    for _ in range(60):
        number = draw.choice([1, 1, 2])
        which = draw.randrange(len(one if number == 1 else two))
        paths = [path() for _ in range(number)]
        if not all(os.path.realpath(real / name).startswith(f"{real}/") for name in paths):
            continue
        answers = []
        for root in (redirected, real):
            os.chdir(root)
            operation: Callable[..., Any] = one[which] if number == 1 else two[which]
            try:
                answers.append(str(operation(*paths)))
            except (OSError, ValueError, shutil.Error) as error:
                answers.append(f"{type(error).__name__} {getattr(error, 'errno', '')}")
        done.append([number, which, paths, answers])
        trees = [
            {key: (seen[0], seen[3]) for key, seen in snapshot(root).items()} for root in (redirected, real)
        ]
        if answers[0] != answers[1] or trees[0] != trees[1]:
            return [seed, done[-5:], str(trees)]
    return []


def test_redirected_files_behave_as_real_ones_do(trial: Trial) -> None:
    seeds = range(15)
    for seed in seeds:
        lay_out(trial.user / str(seed))
        lay_out(trial.allowed / str(seed))
    before = snapshot(trial.user)
    result = trial.run(
        "import importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('ways', {__file__!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "user, allowed = Path.cwd(), Path(os.environ['ALLOWED'])\n"
        "result = [module.same_on_both(seed, user / str(seed), allowed / str(seed))"
        f" for seed in {list(seeds)}]\n"
    )
    assert result == [[]] * len(seeds)
    assert snapshot(trial.user) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_what_the_user_may_not_write_the_trial_may_not_either(trial: Trial) -> None:
    lay_out(trial.user)
    (trial.user / "old.txt").chmod(0o400)
    (trial.user / "kept" / "mine").mkdir()
    (trial.user / "kept").chmod(0o500)
    (trial.user / "blind.txt").write_text("not to be read")
    (trial.user / "blind.txt").chmod(0o200)
    result = trial.run(
        "Path('kept/mine/new.txt').write_text('now a copy of kept is in the shadow')\n"
        "Path('blind.txt').write_text('over it, unread')\n"
        "result = [os.access('kept', os.W_OK), os.access('old.txt', os.W_OK)]\n"
        "for what in (lambda: open('old.txt', 'a'), lambda: open('kept/new.txt', 'w'),\n"
        "             lambda: os.remove('kept/deep.txt'), lambda: os.mkdir('kept/new')):\n"
        "    try: what()\n"
        "    except PermissionError: result.append('no')\n"
    )
    (trial.user / "kept").chmod(0o700)
    assert result == [False, False, "no", "no", "no", "no"]


def test_reading_looks_at_nothing_while_nothing_is_redirected(trial: Trial) -> None:
    """A data loader opens thousands of files: the cost is one look at a counter, then one at the folder."""
    lay_out(trial.user)
    result = trial.run(
        "import flatout.inside.redirect.shadow as redirect\n"
        "walks, real = [], redirect.View.locate\n"
        "redirect.View.locate = lambda *a, **k: walks.append(a[1]) or real(*a, **k)\n"
        "def read():\n"
        "    walks.clear()\n"
        "    for _ in range(50): open('kept/deep.txt').read(); os.stat('old.txt'); os.path.exists('none')\n"
        "    return len(walks)\n"
        "result = [read()]\n"
        "Path('new.txt').write_text('x')\n"
        "result += [read(), read()]\n"
    )
    assert result == [0, 2, 0]
