"""Fifty random kills, seeded: whoever is killed, no process stays, no file changes, no scratch remains.

FLATOUT_KILL_SEED draws other rounds than those that are always run.
"""

import contextlib
import dataclasses
import os
import random
import re
import select
import signal
import subprocess
import sys
import termios
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.jobs import (
    QUICK,
    WITHOUT_NAMESPACES,
    Place,
    namespace_refusal,
    place_in,
    processes_with,
    torchrun,
)

SEED = int(os.environ.get("FLATOUT_KILL_SEED", "20261115"))
ROUNDS = 50
TESTS = 5
AT_ONCE = 3
BEGINS_WITHIN_S = 60.0
GONE_WITHIN_S = 60.0

# One of the loader's two workers is stuck while the training goes on. Everything is saved, all the time.
SCRIPT = (
    QUICK
    + """
import os, pathlib
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, index):
        if index == 3:
            print("blocked", flush=True)
            time.sleep(1000)
        return torch.full((4,), float(index))
ranks = int(os.environ.get("WORLD_SIZE", "1"))
if ranks > 1:
    torch.distributed.init_process_group("gloo")
batches = iter(torch.utils.data.DataLoader(Data(), batch_size=1, num_workers=2))
batch, step = next(batches), 0
while True:
    model(batch).square().mean().backward()
    if ranks > 1:
        torch.distributed.all_reduce(model.weight.grad)
    optimizer.step()
    step += 1
    if step <= 3:
        print("step", step, flush=True)
    for folder in (pathlib.Path.cwd(), pathlib.Path.home(), pathlib.Path(os.environ["OTHER"])):
        (folder / "model.bin").write_bytes(os.urandom(64))
    time.sleep(0.02)
"""
)
VICTIMS = (
    *("flatout SIGKILL", "flatout SIGTERM", "flatout SIGINT", "flatout SIGHUP"),
    *("terminal closed", "terminal ctrl-c", "terminal ctrl-c twice", "both SIGKILL"),
    *("keeper SIGKILL", "main SIGKILL", "rank SIGKILL", "worker SIGKILL"),
)
MOMENTS = ("start", "import", "steps")
# What a shell sees of the command; before it has come to its own code, Python answers an interrupt.
EXIT_CODES = {
    "flatout SIGKILL": {-signal.SIGKILL},
    "flatout SIGTERM": {-signal.SIGTERM},
    "flatout SIGHUP": {-signal.SIGHUP},
    "terminal closed": {-signal.SIGHUP},
    "flatout SIGINT": {130},
    "terminal ctrl-c": {130},
    "terminal ctrl-c twice": {130},
    "both SIGKILL": {-signal.SIGKILL},
}
JOB_FAILED = {4}


@dataclasses.dataclass(frozen=True)
class Round:
    number: int
    victim: str
    moment: str
    ranks: bool
    in_terminal: bool
    redirected: bool
    pause_s: float

    def __str__(self) -> str:
        how = "torchrun" if self.ranks else "python"
        how += ", in a terminal" if self.in_terminal else ""
        how += ", redirected" if self.redirected else ""
        return f"round {self.number}: {self.victim} {self.pause_s:.2f} s into {self.moment} ({how})"


def rounds() -> list[Round]:
    """Every victim equally often, at moments drawn at random."""
    draw = random.Random(SEED)
    victims = [VICTIMS[number % len(VICTIMS)] for number in range(ROUNDS)]
    draw.shuffle(victims)
    found = []
    for number, victim in enumerate(victims):
        # A loader's worker exists in the loop alone; a rank under torchrun alone.
        moment = "steps" if victim.startswith("worker") else draw.choice(MOMENTS)
        ranks = victim.startswith("rank") or (not victim.startswith("worker") and draw.random() < 0.3)
        in_terminal = victim.startswith("terminal") or draw.random() < 0.3
        redirected = draw.random() < 0.2 and not namespace_refusal()
        pause_s = draw.uniform(0, {"start": 0.5, "import": 1.5, "steps": 0.5}[moment])
        found.append(Round(number, victim, moment, ranks, in_terminal, redirected, pause_s))
    return found


class Terminal:
    """A pseudo-terminal, of which the user sees what is written to it."""

    # Makes its standard input the controlling terminal of its session, and becomes the command.
    TAKE = (
        "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )

    def __init__(self) -> None:
        self._ours, self.theirs = os.openpty()
        self._settings = termios.tcgetattr(self.theirs)
        self._closed = False
        self.seen = b""

    def read(self) -> None:
        """Take what there is: a terminal that nobody reads would hold the command up."""
        while not self._closed and select.select([self._ours], [], [], 0)[0]:
            self.seen += os.read(self._ours, 1 << 16)

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            os.close(self._ours)

    def is_as_it_was(self) -> bool:
        """Whether settings are the same, and a cursor that was hidden is shown again."""
        self.read()
        cursor = re.findall(rb"\x1b\[\?25([hl])", self.seen)
        return termios.tcgetattr(self.theirs) == self._settings and cursor[-1:] != [b"l"]


class Started:
    """A command under way, and the processes of its job."""

    def __init__(self, what: Round, place: Place) -> None:
        self._place = place
        self.round = what
        self.terminal = Terminal() if what.in_terminal else None
        words = torchrun("train.py") if what.ranks else ("train.py",)
        command = [sys.executable, "-m", "flatout", "profile", "--no-limits", "--steps", "1000000", *words]
        if what.redirected:
            command = [*WITHOUT_NAMESPACES, *command]
        self._file = place.work.parent / "output.txt"
        with self._file.open("wb") as file:
            stream: Any = file
            if self.terminal is not None:
                command = [sys.executable, "-I", "-S", "-c", Terminal.TAKE, *command]
                stream = self.terminal.theirs
            self.process = subprocess.Popen(
                command,
                stdin=self.terminal.theirs if self.terminal is not None else subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                cwd=place.work,
                env=place.environment(),
                start_new_session=True,
            )

    def said(self) -> str:
        """What the command told its user."""
        seen = self._file.read_bytes() if self.terminal is None else self.terminal.seen
        return seen.decode(errors="replace")[-2000:]

    def pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while True:
            if self.terminal is not None:
                self.terminal.read()
            rest = deadline - time.monotonic()
            if rest <= 0:
                return
            time.sleep(min(rest, 0.02))

    def pid(self, who: str) -> int | None:
        """The process that plays this part, if it is there already."""
        if who == "flatout":
            return self.process.pid
        found = processes_with(self._place.token)
        parents = {pid: parent_of(pid) for pid in found}
        keepers = [pid for pid in found if parents[pid] == self.process.pid and is_keeper(found[pid])]
        if who == "keeper" or not keepers:
            return keepers[0] if keepers else None
        mains = [pid for pid in found if parents[pid] == keepers[0] and not is_keeper(found[pid])]
        if who == "main" or not mains:
            return mains[0] if mains else None
        children = sorted(pid for pid in found if parents[pid] == mains[0] and "train.py" in found[pid])
        return children[-1] if children else None

    def wait_for(self, who: str) -> int:
        deadline = time.monotonic() + BEGINS_WITHIN_S
        while (pid := self.pid(who)) is None:
            assert time.monotonic() < deadline, f"{self.round}: no {who} within {BEGINS_WITHIN_S} s"
            self.pause(0.02)
        return pid

    def wait_for_steps(self) -> None:
        """Until every rank trains, with a worker of each stuck."""
        deadline = time.monotonic() + BEGINS_WITHIN_S
        wanted = 2 if self.round.ranks else 1
        while True:
            said = "".join(
                file.read_text() for file in self._place.work.glob(".flatout/runs/*/trials/*/stdout.txt")
            )
            if said.count("step 3\n") == said.count("blocked\n") == wanted:
                return
            if time.monotonic() > deadline:
                raise NeverBegan(f"{self.round}: no steps within {BEGINS_WITHIN_S} s, and said {said!r}")
            assert self.process.poll() is None, f"{self.round}: ended with {self.process.returncode}"
            self.pause(0.05)

    def kill(self, who: str, how: signal.Signals) -> None:
        deadline = time.monotonic() + BEGINS_WITHIN_S
        while time.monotonic() < deadline:
            with contextlib.suppress(
                ProcessLookupError
            ):  # one that found no overlay, and is followed by another
                os.kill(self.wait_for(who), how)
                return

    def strike(self) -> None:
        who, _, how = self.round.victim.partition(" ")
        if self.round.moment == "import":
            self.wait_for("main")
        elif self.round.moment == "steps":
            self.wait_for_steps()
        self.pause(self.round.pause_s)
        if who == "both":
            self.wait_for("keeper")
            self.process.send_signal(signal.SIGSTOP)  # so that it does not see the other one die
            self.kill("keeper", signal.SIGKILL)
            self.process.kill()
        elif who != "terminal":
            self.kill(who, signal.Signals[how])
        elif self.terminal is not None and how == "closed":
            self.terminal.close()
        elif self.terminal is not None:
            self.terminal.type(b"\x03")
            if how == "ctrl-c twice":
                self.pause(self.round.pause_s)
                with contextlib.suppress(OSError):  # it was quicker
                    self.terminal.type(b"\x03")


def is_keeper(words: list[str]) -> bool:
    return "flatout.runtime.keeper" in words


def parent_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return 0


def expected(what: Round) -> set[int]:
    codes = EXIT_CODES.get(what.victim, JOB_FAILED)
    # Before it is our own code that runs, an interrupt or a lost terminal meets Python, or the one before it.
    early = what.moment == "start" and 130 in codes
    return codes | {-signal.SIGINT, 1} if early else codes


class NeverBegan(AssertionError):
    """The job that was to be killed did not begin to train."""


def play(what: Round, root: Path) -> str:
    """One round; ranks that never found each other on a busy machine get a second chance."""
    try:
        return play_once(what, root)
    except NeverBegan:
        if not what.ranks:
            raise
        return play_once(what, root.with_name(f"{root.name}-again"))


def play_once(what: Round, root: Path) -> str:
    with place_in(root) as place:
        place.script(SCRIPT)
        for folder in (place.work, place.home, place.other):
            (folder / "model.bin").write_bytes(b"the user's own")
        before = place.snapshot()
        started = Started(what, place)
        try:
            started.strike()
            struck = time.monotonic()
            while time.monotonic() < struck + GONE_WITHIN_S and processes_with(place.token):
                started.pause(0.05)
            took_s = time.monotonic() - struck
            left = processes_with(place.token)
            assert left == {}, f"{what}: left {left}"
            code = started.process.wait(60)
            assert code in expected(what), f"{what}: exit code {code}, and said {started.said()!r}"
            assert place.snapshot() == before, f"{what}: files changed"
            scratch = [str(path) for path in place.temporary.rglob("*")]
            assert scratch == [] or what.victim == "both SIGKILL", f"{what}: left {scratch}"
            if started.terminal is not None and "closed" not in what.victim and "KILL" not in what.victim:
                assert started.terminal.is_as_it_was(), f"{what}: the terminal: {started.terminal.seen!r}"
        finally:
            with contextlib.suppress(OSError):
                started.process.kill()
            started.process.wait(10)
            if started.terminal is not None:
                started.terminal.close()
                os.close(started.terminal.theirs)
        return f"{what}: exit code {code}, all gone after {took_s:.1f} s"


@pytest.mark.timeout(420)
@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.full) for part in range(1, TESTS))]
)
def test_whoever_is_killed_nobody_stays_and_nothing_changes(part: int, tmp_path: Path) -> None:
    chosen = rounds()[part::TESTS]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        games = [pool.submit(play, what, tmp_path / str(what.number)) for what in chosen]
    failures = [str(error) for game in games if (error := game.exception())]
    print(*(game.result() for game in games if not game.exception()), sep="\n")  # noqa: T201 -- shown by -rP
    assert failures == []
    assert len(games) == ROUNDS // TESTS


@pytest.mark.parametrize(
    "how",
    ["SIGKILL", "SIGTERM", *(pytest.param(how, marks=pytest.mark.full) for how in ("SIGHUP", "SIGINT"))],
)
def test_a_kill_right_after_the_scratch_folder_was_made_leaves_none(tmp_path: Path, how: str) -> None:
    for pause_s in (0.0, 0.01):
        with place_in(tmp_path / str(pause_s)) as place:
            place.script("import time\ntime.sleep(1000)\n")
            process = subprocess.Popen(
                [sys.executable, "-m", "flatout", "profile", "--no-limits", "train.py"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=place.work,
                env=place.environment(),
            )
            deadline = time.monotonic() + BEGINS_WITHIN_S
            # Not just anything: Python itself tries the folder with a file of its own, for a moment.
            while not list(place.temporary.glob("flatout-*")):
                assert time.monotonic() < deadline
            time.sleep(pause_s)
            process.send_signal(signal.Signals[how])
            assert process.wait(GONE_WITHIN_S) in {-signal.Signals[how], 130}
            deadline = time.monotonic() + GONE_WITHIN_S
            while processes_with(place.token) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert processes_with(place.token) == {}
            assert list(place.temporary.rglob("*")) == []
