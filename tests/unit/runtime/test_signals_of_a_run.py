"""Signals of a job that runs to its end: what is ignored stays so, none is lost, and its end is told."""

import signal
import threading
from pathlib import Path

import pytest

from flatout.runtime.alarms import told
from flatout.runtime.command import job_command
from flatout.runtime.running import run_to_the_end

REPORT = """
import signal, pathlib
numbers = (signal.SIGHUP, signal.SIGUSR1, signal.SIGTERM)
seen = [signal.getsignal(number) == signal.SIG_IGN for number in numbers]
pathlib.Path("seen").write_text(repr(seen))
"""


def test_what_is_ignored_is_ignored_by_the_job_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(REPORT)
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        ending = run_to_the_end(job_command(("train.py",)), tmp_path / "run", {})
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ending.exit_code == 0
    assert (tmp_path / "seen").read_text() == "[False, True, False]"


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no /proc to look at threads")
def test_the_thread_that_looks_for_alarms_takes_no_signals(tmp_path: Path) -> None:
    with told(tmp_path, lambda _alarm: None):
        thread = next(one for one in threading.enumerate() if one.name == "flatout-alarms")
        status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
        blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
    assert all(blocked >> (number - 1) & 1 for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1))
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


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
