"""Signals of a job that runs to its end: what is ignored stays so, none is lost, and its end is told."""

import signal
import threading
from pathlib import Path

import msgspec
import pytest

from flatout.records.running import Alarm
from flatout.records.session import ALARMS_FILE
from flatout.runtime import alarms
from flatout.runtime.alarms import told
from flatout.runtime.aside import start_aside
from flatout.runtime.command import job_command
from flatout.runtime.running import run_to_the_end

REPORT = """
import signal, pathlib
numbers = (signal.SIGHUP, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
seen = [signal.getsignal(number) == signal.SIG_IGN for number in numbers]
pathlib.Path("seen").write_text(repr(seen))
"""


def test_what_is_ignored_is_ignored_by_the_job_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(REPORT)
    ignored = (signal.SIGUSR1, signal.SIGINT)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    try:
        ending = run_to_the_end(job_command(("train.py",)), tmp_path / "run", {})
        assert all(signal.getsignal(number) is signal.SIG_IGN for number in ignored)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert ending.exit_code == 0
    assert (tmp_path / "seen").read_text() == "[False, True, False, True]"


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no /proc to look at threads")
def test_the_thread_that_looks_for_alarms_takes_no_signals(tmp_path: Path) -> None:
    with told(tmp_path, lambda _alarm: None):
        thread = next(one for one in threading.enumerate() if one.name == "flatout-alarms")
        status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
        blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
    assert all(blocked >> (number - 1) & 1 for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1))
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_thread_that_cannot_begin_leaves_the_signals_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        start_aside(lambda: None, "never")
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_each_alarm_is_told_once_whichever_rank_gives_it_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alarms, "_LOOK_S", 0.005)
    heard: list[int] = []
    first = threading.Event()

    def hear(alarm: Alarm) -> None:
        heard.append(alarm.update)
        first.set()

    with told(tmp_path, hear):
        for rank, update in ((0, 500), (1, 490)):
            place = tmp_path / "ranks" / f"{rank}-{rank + 1}"
            place.mkdir(parents=True)
            alarm = Alarm(what="slower", update=update, step_ms=2.0, best_ms=1.0, rank=rank)
            (place / ALARMS_FILE).write_bytes(msgspec.json.encode(alarm) + b"\n")
            assert first.wait(30)
    assert heard == [500, 490]


@pytest.mark.parametrize(
    ("ends", "code"), [("raise flatout.Stopped(143)", 143), ("raise SystemExit(143)", 1)]
)
def test_a_launcher_does_not_hide_that_a_rank_was_asked_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rank.py").write_text(f"import flatout\n{ends}\n")
    launcher = "import subprocess, sys\nsys.exit(bool(subprocess.call([sys.executable, 'rank.py'])))\n"
    (tmp_path / "launcher.py").write_text(launcher)
    assert run_to_the_end(job_command(("launcher.py",)), tmp_path / "run", {}).exit_code == code
