"""Small training scripts for tests that run whole commands, and what such a test looks at afterwards."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

TOKEN_VARIABLE = "FLATOUT_TEST_TOKEN"
_HASH_AT_MOST = 64 << 20

# torch's own optimizers load the compiler, which takes as long as all the rest of a small script.
QUICK_SGD = """
import sys, time, torch
class Sgd(torch.optim.Optimizer):
    add_param_group = torch.optim.Optimizer.add_param_group.__wrapped__
    def __init__(self, parameters, lr=0.05):
        super().__init__(parameters, {"lr": lr})
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.data.sub_(parameter.grad, alpha=group["lr"])
                    parameter.grad = None
"""
QUICK = (
    QUICK_SGD
    + """
torch.manual_seed(7)
model = torch.nn.Linear(4, 1)
optimizer = Sgd(model.parameters())
def update():
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()
"""
)
ENDLESS = QUICK + "while True:\n    update()\n"


@dataclasses.dataclass(frozen=True)
class Place:
    """A user's folders: the script's, the home, one on another path, and the one for temporary files."""

    work: Path
    home: Path
    other: Path
    temporary: Path
    cache: Path
    token: str
    # For one command.
    timeout_s: float = 280

    def script(self, text: str, name: str = "train.py") -> str:
        (self.work / name).write_text(text)
        return name

    def environment(self, **more: str) -> dict[str, str]:
        left_out = ("CUDA_", "OMP_", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
        ours = {
            "FLATOUT_CACHE_DIR": str(self.cache),
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "100",
            TOKEN_VARIABLE: self.token,
            "OTHER": str(self.other),
        }
        return {**kept, **ours, **more}

    def flatout(
        self, *arguments: str, wrapper: Sequence[str] = (), **environment: str
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command of ours in the work folder; recordings have tests of their own, and take long."""
        if arguments[:1] == ("profile",):
            arguments = ("profile", "--no-trace", *arguments[1:])
        return self.run((*wrapper, sys.executable, "-m", "flatout", *arguments), **environment)

    def run(self, command: Sequence[str], **environment: str) -> "subprocess.CompletedProcess[str]":
        """Run a command in the work folder; no process of it may stay, and no temporary file."""
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            cwd=self.work,
            env=self.environment(**environment),
            timeout=self.timeout_s,
        )
        assert left_after_a_moment(self.token) == {}
        assert list(self.temporary.iterdir()) == []
        return done

    def bare(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        """Run Python in the work folder, without Flatout, with temporary files of its own."""
        own = self.work.parent / "bare"
        own.mkdir(exist_ok=True)
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            cwd=self.work,
            env=self.environment(TMPDIR=str(own), **environment),
            timeout=280,
        )

    def trial(self, name: str = "1-profile") -> Path:
        """The folder of a trial of the one run that there is."""
        [run] = (self.work / ".flatout" / "runs").iterdir()
        return run / "trials" / name

    def said(self, name: str = "1-profile") -> str:
        """What the script printed in a trial."""
        return (self.trial(name) / "stdout.txt").read_text(errors="replace")

    def snapshot(self) -> dict[str, tuple[Any, ...]]:
        """All that the user has, apart from our own folder in his."""
        return {
            **snapshot(self.work, apart=".flatout"),
            **snapshot(self.home),
            **snapshot(self.other),
        }


@contextlib.contextmanager
def place_in(root: Path) -> Iterator[Place]:
    """Folders below `root`, and one in another part of the file system; processes are gone afterwards."""
    other = Path(tempfile.mkdtemp(prefix="flatout-test-", dir="/var/tmp"))
    # With a short path: Python's workers put sockets there, whose names may have a hundred characters.
    temporary = Path(tempfile.mkdtemp(prefix="flatout-test-", dir="/tmp"))
    folders = {name: root / name for name in ("work", "home", "cache")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    (folders["work"] / ".flatout").mkdir()  # here already, so that the folder's own times can be compared
    place = Place(**folders, other=other, temporary=temporary, token=f"{os.getpid()}-{secrets.token_hex(8)}")
    try:
        yield place
    finally:
        end_processes_with(place.token)
        for folder in (other, temporary):
            shutil.rmtree(folder)


def document(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    """The JSON on standard output, which must hold nothing else."""
    assert done.stdout, done.stderr
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


def snapshot(folder: Path, *, apart: str = "") -> dict[str, tuple[Any, ...]]:
    """Content, mode and times of all that is in a folder, and of the folder; huge files by their edges."""
    seen = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        if apart and (folder / apart in path.parents or path == folder / apart):
            continue
        looks = path.lstat()
        content: object = b""
        if stat.S_ISREG(looks.st_mode) and looks.st_size <= _HASH_AT_MOST:
            content = hashlib.sha256(path.read_bytes()).digest()
        elif stat.S_ISREG(looks.st_mode):
            with path.open("rb") as file:
                content = (looks.st_blocks, file.read(4096), file.seek(-4096, 2), file.read())
        elif stat.S_ISLNK(looks.st_mode):
            content = os.readlink(path)  # noqa: PTH115 -- as it is
        seen[str(path)] = (oct(looks.st_mode), looks.st_size, looks.st_mtime_ns, looks.st_ino, content)
    return seen


def processes_with(token: str) -> dict[int, list[str]]:
    """Living processes whose environment holds the token, and their command lines."""
    found = {}
    wanted = f"{TOKEN_VARIABLE}={token}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it ended, or belongs to somebody else
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                words = (entry / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
                found[int(entry.name)] = [os.fsdecode(word) for word in words]
    return found


def left_after_a_moment(token: str) -> dict[int, list[str]]:
    """Those who stay: a helper of Python's own sees only now that whom it helped has ended."""
    deadline = time.monotonic() + 20
    while (left := processes_with(token)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def end_processes_with(token: str) -> None:
    """Kill what a test that failed left behind: its own processes, known by their token."""
    deadline = time.monotonic() + 60
    while (left := processes_with(token)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


# A script that leaves nothing alone: it overwrites, creates, deletes and renames, everywhere, and saves in
# its loop and at its end. STEPS makes it end by itself.
SAVES_EVERYWHERE = (
    QUICK_SGD
    + """
import os, pathlib, shutil, stat, sys, torch

here, home = pathlib.Path.cwd(), pathlib.Path.home()
other, token = pathlib.Path(os.environ["OTHER"]), os.environ["FLATOUT_TEST_TOKEN"]
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = Sgd(model.parameters())

def writes():
    (here / "notes.txt").write_text("overwritten")
    (here / "notes.txt").chmod(0o600)
    (here / "log.txt").rename(here / "log.1.txt")
    (here / "old.txt").unlink()
    (here / "link").unlink()
    (here / "link").symlink_to("elsewhere")
    shutil.rmtree(here / "results")
    (here / "results" / "deep").mkdir(parents=True)
    (here / "results" / "deep" / "new.txt").write_text("new")
    os.utime(here / "kept.txt", (1, 1))
    with open("best.pt", "r+b") as file:
        file.write(b"in place")
    for folder in (home, other):
        with open(folder / "shared.txt", "a") as file:
            file.write("appended")
        (folder / f"made-{token}").mkdir()
        os.replace(folder / "a.txt", folder / "b.txt")
    pathlib.Path("/tmp", f"made-{token}").write_text("made")
    with open("large.bin", "rb") as file:
        file.seek(-1, 2)
        print("large", file.read(), flush=True)

def sees():
    places = (here, here / "results", here / "results" / "deep", home, other)
    print("sees", [sorted(name for name in os.listdir(place) if name != ".flatout") for place in places])
    print("holds", (here / "notes.txt").read_text(), oct(stat.S_IMODE(os.stat("notes.txt").st_mode)),
        (home / "shared.txt").read_text(), os.readlink("link"), os.stat("kept.txt").st_mtime,
        pathlib.Path("/tmp", f"made-{token}").read_text(), flush=True)

writes()
sees()
steps = int(os.environ.get("STEPS", 10**9))
try:
    for step in range(steps):
        loss = model(torch.randn(16, 4)).square().mean()
        loss.backward()
        optimizer.step()
        print("loss", loss.item().hex(), flush=True)
        torch.save(model.state_dict(), "best.pt")
        torch.save(model.state_dict(), other / f"checkpoint-{step % 3}.pt")
finally:
    torch.save(model.state_dict(), "final.pt")
    print("finally ran", flush=True)
"""
)
SEES = (
    "sees [['best.pt', 'kept.txt', 'large.bin', 'link', 'log.1.txt', 'notes.txt', 'results', 'train.py'], "
    "['deep'], ['new.txt'], ['b.txt', 'made-{0}', 'shared.txt'], ['b.txt', 'made-{0}', 'shared.txt']]\n"
    "holds overwritten 0o600 mineappended elsewhere 1.0 made\n"
)


def furnish(place: Place) -> None:
    """Put the script that leaves nothing alone into a folder, and what it will not leave alone."""
    place.script(SAVES_EVERYWHERE)
    work = place.work
    for name in ("notes.txt", "log.txt", "old.txt", "kept.txt", "best.pt"):
        (work / name).write_text(f"my {name}")
    (work / "link").symlink_to("notes.txt")
    (work / "results").mkdir()
    (work / "results" / "one.csv").write_text("1,2,3")
    for folder in (place.home, place.other):
        (folder / "shared.txt").write_text("mine")
        (folder / "a.txt").write_text("a")
        (folder / "b.txt").write_text("b")
    with (work / "large.bin").open("wb") as large:
        large.truncate(1 << 40)  # more than the disk holds: whoever copies it fails


def insist_on_writes(place: Place, said: str) -> None:
    """The script really wrote, and saw what it wrote."""
    assert SEES.format(place.token) in said
    assert "large b'\\x00'" in said
    assert not Path("/tmp", f"made-{place.token}").exists()


def losses_in(said: str) -> list[str]:
    """What the script printed as losses."""
    return [line.split()[1] for line in said.splitlines() if line.startswith("loss ")]


def torchrun(*words: str) -> Sequence[str]:
    """Two ranks on this machine, on a port that nobody else has."""
    program = str(Path(sys.executable).with_name("torchrun"))
    return ("--", program, "--standalone", "--nproc-per-node", "2", *words)


# Goes, under the same user, where nobody may make a namespace: their numbers are limited to none.
_NO_NAMESPACES = """
import ctypes, os, sys
uid, gid = os.getuid(), os.getgid()
if ctypes.CDLL(None, use_errno=True).unshare(0x10000000):
    sys.exit(f"unshare: {os.strerror(ctypes.get_errno())}")
for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
    open(f"/proc/self/{name}", "w").write(text)
for kind in ("user", "mnt"):
    open(f"/proc/sys/user/max_{kind}_namespaces", "w").write("0")
os.execvp(sys.argv[1], sys.argv[1:])
"""
WITHOUT_NAMESPACES = (sys.executable, "-I", "-S", "-c", _NO_NAMESPACES)


@functools.cache
def namespace_refusal() -> str:
    """Why not even the namespace can be made in which others are refused; empty where it can."""
    done = subprocess.run([*WITHOUT_NAMESPACES, "true"], capture_output=True, text=True, timeout=30)
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


TWO_RANKS = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
try:
    step = 0
    while True:
        loss = model(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if dist.get_rank() == 0:
            torch.save(model.state_dict(), "model.pt")
finally:
    print("finally ran", flush=True)
"""


def digests(place: Place) -> dict[str, str]:
    """What lies in the script's folder, without what is ours."""
    return {
        str(path.relative_to(place.work)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(place.work.rglob("*"))
        if path.is_file() and ".flatout" not in path.parts and path.name != "flatout.toml"
    }
