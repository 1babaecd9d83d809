"""Real keepers, as root and as a user without privileges, and the folders that they work in."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import select
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from flatout.runtime.job import Job
from flatout.runtime.scratch import remove_folder
from flatout.runtime.shield import ShieldRequest

WAIT_S = 60.0
SOURCE = Path(__file__).parents[3] / "src"
NOBODY = 65534
MARK = f"test-{os.getpid()}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Who:
    """The user as whom a keeper and its job run, and a Python that he can start."""

    uid: int
    gid: int
    python: str

    @property
    def switches(self) -> bool:
        return self.uid != os.getuid()


@functools.cache
def python_of(uid: int) -> str | None:
    """An interpreter that this user may execute: root's own often lies where nobody else can look."""
    for candidate in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            subprocess.run(
                [candidate, "-P", "-c", "import flatout.runtime.keeper"],
                env={"PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"},
                user=uid if uid != os.getuid() else None,
                cwd="/",
                check=True,
                capture_output=True,
                timeout=WAIT_S,
            )
        except (OSError, subprocess.SubprocessError):
            continue
        return candidate
    return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class House:
    """A user's folders: `work` with his script, `home`, `other`, `run` for what is kept, and `scratch`."""

    root: Path
    work: Path
    home: Path
    other: Path
    run: Path
    scratch: Path


@contextlib.contextmanager
def house_in(place: str, who: Who) -> Iterator[House]:
    root = Path(tempfile.mkdtemp(prefix="flatout-test-", dir=place))
    try:
        root.chmod(0o755)
        folders = {name: root / name for name in ("work", "home", "other", "run", "scratch")}
        for folder in folders.values():
            folder.mkdir()
            os.chown(folder, who.uid, who.gid)
        os.chown(root, who.uid, who.gid)
        yield House(root=root, **folders)
    finally:
        remove_folder(root)


class Kept:
    """A keeper that was started, and what it says."""

    def __init__(self, process: "subprocess.Popen[bytes]", job: Job) -> None:
        self.process = process
        self.job = job
        self._text = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def event(self, name: str) -> dict[str, Any]:
        """The next event, which must have this name."""
        deadline = time.monotonic() + WAIT_S
        assert self.process.stdout is not None
        while b"\n" not in self._text:
            readable, _, _ = select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))
            assert readable, f"no event {name} within {WAIT_S} s"
            chunk = os.read(self.process.stdout.fileno(), 1 << 16)
            assert chunk, f"the keeper ended before it told {name}; {self.said()}"
            self._text += chunk
        line, self._text = self._text.split(b"\n", 1)
        event: dict[str, Any] = json.loads(line)
        assert event.pop("event") == name, f"{line!r}, and {self.said()}"
        return event

    def shielded(self) -> dict[str, Any]:
        """The shield event of a keeper that goes on."""
        event = self.event("shield")
        assert event["kind"] == "overlay", event
        return event

    def ended(self) -> dict[str, Any]:
        event = self.event("ended")
        assert self.process.wait(WAIT_S) == 0
        return event

    def finish(self) -> dict[str, Any]:
        """Let a shielded job run to its end, which must be a good one."""
        self.shielded()
        self.event("started")
        event = self.ended()
        assert event["exit_code"] == 0, self.said()
        assert event["not_removed"] == [], event
        return event

    def let_go(self) -> None:
        """Close the pipe, as the end of Flatout does."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def said(self) -> str:
        """What the job wrote to its outputs."""
        files = {Path(self.job.stdout), Path(self.job.stderr)}
        return "".join(file.read_text() for file in sorted(files) if file.exists())


# The least that a shield needs, written without our own code.
_OVERLAY = """
import ctypes, os, tempfile
call = ctypes.CDLL(None, use_errno=True)
def check(result, what):
    if result: raise SystemExit(f"{what}: {os.strerror(ctypes.get_errno())}")
uid, gid, options = os.getuid(), os.getgid(), ""
if call.unshare(0x20000):
    options = ",userxattr"
    check(call.unshare(0x10020000), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        open(f"/proc/self/{name}", "w").write(text)
zero = ctypes.c_ulong(0)
check(call.mount(b"/", b"/", None, ctypes.c_ulong(0x44000), None), "private mounts")
check(call.mount(b"tmpfs", b"/tmp", b"tmpfs", zero, None), "tmpfs")
for name in "luwm": os.mkdir(f"/tmp/{name}")
layers = "lowerdir=/tmp/l,upperdir=/tmp/u,workdir=/tmp/w" + options
check(call.mount(b"overlay", b"/tmp/m", b"overlay", zero, layers.encode()), "overlay")
"""


@functools.cache
def shield_refusal(who: Who) -> str:
    """Why this machine allows this user no overlay, by a test of its own; empty where it does."""
    done = subprocess.run(
        [who.python, "-c", _OVERLAY],
        user=who.uid if who.switches else None,
        group=who.gid if who.switches else None,
        extra_groups=[] if who.switches else None,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        cwd="/",
    )
    return done.stderr.strip() if done.returncode else ""


def run_as(who: Who, code: str) -> str:
    """What a Python script of a user prints, with our packages at hand; skips where he cannot load them."""
    done = subprocess.run(
        [who.python, "-P", "-c", code],
        env={"PYTHONPATH": f"{SOURCE}:{Path(psutil.__file__).parents[1]}", "PYTHONDONTWRITEBYTECODE": "1"},
        user=who.uid if who.switches else None,
        group=who.gid if who.switches else None,
        extra_groups=[] if who.switches else None,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        cwd="/",
    )
    if "No module named 'psutil'" in done.stderr:
        pytest.skip("this user's Python cannot load psutil")
    assert done.returncode == 0, done.stderr
    return done.stdout


def make_job(who: Who, house: House, command: Sequence[str] | str, **changes: Any) -> Job:
    """A job in `house`; a command that is one text is a Python script."""
    if isinstance(command, str):
        command = (who.python, "-c", command)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(house.home),
        "HOUSE": str(house.root),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    job = Job(
        command=tuple(command),
        cwd=str(house.work),
        environment=environment,
        stdout=str(house.run / "out"),
        stderr=str(house.run / "out"),
        mark=MARK,
        cleanup=(str(house.scratch),),
    )
    return dataclasses.replace(job, **changes)


def snapshot(folder: Path) -> dict[str, tuple[Any, ...]]:
    """Everything that one can see of the files in a folder, and of the folder."""
    seen = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        looks = path.lstat()
        content = b""
        if stat.S_ISREG(looks.st_mode):
            content = hashlib.sha256(path.read_bytes()).digest()
        elif stat.S_ISLNK(looks.st_mode):
            content = os.fsencode(path.readlink())
        seen[str(path.relative_to(folder))] = (
            (looks.st_mode, looks.st_uid, looks.st_gid, looks.st_size, looks.st_nlink),
            (looks.st_ino, looks.st_mtime_ns, looks.st_ctime_ns),
            content,
        )
    return seen


def in_mounts_of_its_own(who: Who, script: str) -> list[str]:
    """A wrapper that mounts something for the keeper alone to see, before it becomes the right user."""
    if os.getuid() != 0 or not shutil.which("unshare") or not shutil.which("setpriv"):
        pytest.skip("needs root, unshare and setpriv to mount something")
    switch = f"setpriv --reuid {who.uid} --regid {who.gid} --clear-groups" if who.switches else ""
    return ["unshare", "--mount", "sh", "-ec", f'{script}; exec {switch} "$@"', "sh"]


def shielding(house: House, *keep: Path) -> ShieldRequest:
    """A shield that uses the scratch folder and keeps the run folder."""
    return ShieldRequest(scratch=house.scratch, keep=(house.run, *keep))


def wait_for(path: Path) -> str:
    """The content of a file that another process writes, once it ends with a line break."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if path.exists() and (text := path.read_text()).endswith("\n"):
            return text
        time.sleep(0.01)
    raise AssertionError(f"{path} was not written within {WAIT_S} s")
