"""`flatout watch` as it is used: in a real terminal, in pipes, recorded and replayed."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import IO

import pytest

FLATOUT = [sys.executable, "-m", "flatout"]


def run(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*FLATOUT, *words], capture_output=True, text=True, timeout=250, **options)  # type: ignore[call-overload,no-any-return]


class Terminal:
    """A pseudo-terminal with a program in it."""

    def __init__(
        self,
        *words: str,
        columns: int = 80,
        lines: int = 24,
        errors: IO[bytes] | None = None,
        **environment: str,
    ) -> None:
        self.master, worker = pty.openpty()
        termios.tcsetwinsize(worker, (lines, columns))
        self.worker = worker
        self.before = termios.tcgetattr(worker)
        self.text = b""
        kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "LC_ALL")}
        self.child = subprocess.Popen(
            [*FLATOUT, *words],
            stdin=worker,
            stdout=worker,
            stderr=errors or worker,
            env={**kept, "TERM": "xterm-256color", "LANG": "C.UTF-8", **environment},
            start_new_session=True,
        )

    def read_until(self, wanted: bytes, seconds: float = 100.0) -> bytes:
        until = time.monotonic() + seconds
        while wanted not in self.text:
            assert time.monotonic() < until, self.text[-2000:]
            self._read(0.1)
        return self.text

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def ended(self) -> int:
        until = time.monotonic() + 100
        while self.child.poll() is None:
            assert time.monotonic() < until, self.text[-2000:]
            self._read(0.1)
        self._read(0.3)
        return self.child.returncode

    def is_restored(self) -> bool:
        """The modes of the line as they were, the cursor shown, the first screen back."""
        screens = (self.text.rfind(b"\x1b[?1049l"), self.text.rfind(b"\x1b[?1049h"))
        cursor = (self.text.rfind(b"\x1b[?25h"), self.text.rfind(b"\x1b[?25l"))
        return (
            termios.tcgetattr(self.worker) == self.before
            and screens[0] > screens[1]
            and cursor[0] > cursor[1]
        )

    def close(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        os.close(self.master)
        os.close(self.worker)

    def _read(self, seconds: float) -> None:
        while select.select([self.master], [], [], seconds)[0]:
            self.text += os.read(self.master, 65536)
            seconds = 0.0


def test_it_starts_in_a_terminal_answers_keys_and_leaves_it_as_it_was() -> None:
    terminal = Terminal("watch")
    try:
        terminal.read_until(b"flatout watch")
        terminal.read_until(b"no GPU can be seen")
        terminal.type(b"s")
        terminal.read_until(b"sorted by age")
        terminal.type(b"q")
        assert terminal.ended() == 0
        assert terminal.is_restored()
    finally:
        terminal.close()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, None)])
def test_signals_leave_the_terminal_as_it_was(number: signal.Signals, code: int | None) -> None:
    terminal = Terminal("watch", NO_COLOR="1")
    try:
        terminal.read_until(b"no GPU can be seen")
        if number is signal.SIGINT:
            terminal.type(b"\x03")  # as the terminal sends it
        else:
            terminal.child.send_signal(number)
        ended = terminal.ended()
        assert code is None or ended == code
        assert terminal.is_restored()
        # And without colour, as asked.
        assert b"\x1b[31m" not in terminal.text
        assert b"[38;" not in terminal.text
        assert b"[48;" not in terminal.text
    finally:
        terminal.close()


def test_a_plain_locale_sees_ascii() -> None:
    terminal = Terminal("watch", LC_ALL="C")
    try:
        terminal.read_until(b"no GPU can be seen")
        terminal.type(b"q")
        terminal.ended()
        assert terminal.text.isascii()
    finally:
        terminal.close()


def test_once_in_a_pipe_is_text_and_nothing_else() -> None:
    for words in (["watch", "--once"], ["watch"]):
        done = run(*words)
        assert done.returncode == 0
        assert done.stderr == ""
        assert "no GPU can be seen here" in done.stdout
        assert "\x1b" not in done.stdout


def test_with_errors_in_a_file_the_terminal_gets_one_look_as_text(tmp_path: Path) -> None:
    path = tmp_path / "errors"
    with path.open("wb") as errors:
        terminal = Terminal("watch", errors=errors)
    try:
        assert terminal.ended() == 0
        assert b"no GPU can be seen here" in terminal.text
        assert b"\x1b[?1049h" not in terminal.text + path.read_bytes()
    finally:
        terminal.close()


def test_json_once_is_one_document() -> None:
    done = run("watch", "--once", "--json")
    found = json.loads(done.stdout)
    assert found["schema"] == "flatout.watch/1"
    assert found["devices"][0]["vendor"] == "cpu"
    assert found["machine"]["memory_total_bytes"] > 0
    assert done.stderr == ""


def test_json_is_a_line_a_frame_and_ends_quietly_with_its_reader() -> None:
    with subprocess.Popen([*FLATOUT, "watch", "--json", "--every", "0.1"], stdout=-1, stderr=-1) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        first, second = (json.loads(child.stdout.readline()) for _ in range(2))
        child.stdout.close()
        assert child.wait(60) == 0
        assert child.stderr.read() == b""
    assert second["taken_at_unix_s"] > first["taken_at_unix_s"]


def test_what_was_recorded_can_be_replayed_in_the_same_view(tmp_path: Path) -> None:
    path = tmp_path / "night.jsonl.gz"
    with subprocess.Popen([*FLATOUT, "watch", "--record", str(path), "--every", "0.1"], stdout=-1) as child:
        until = time.monotonic() + 100
        while not path.exists() or path.stat().st_size < 500:
            assert time.monotonic() < until
            time.sleep(0.05)
        child.send_signal(signal.SIGTERM)
        child.wait(60)
    assert "no GPU can be seen here" in run("watch", "--replay", str(path)).stdout
    terminal = Terminal("watch", "--replay", str(path))
    try:
        terminal.read_until(b"frame ")
        terminal.type(b"q")
        assert terminal.ended() == 0
        assert terminal.is_restored()
    finally:
        terminal.close()


def test_mistakes_are_told(tmp_path: Path) -> None:
    unknown = run("watch", "--once", "--device", "17")
    assert (unknown.returncode, "unknown device '17'" in unknown.stderr) == (2, True)
    missing = run("watch", "--replay", str(tmp_path / "none.jsonl"))
    assert (missing.returncode, "is not there" in missing.stderr) == (3, True)
    both = run("watch", "--replay", "x", "--record", "y")
    assert both.returncode == 2
    nowhere = run("watch", "--once", "--record", str(tmp_path / "no" / "x.jsonl"))
    assert (nowhere.returncode, "cannot write" in nowhere.stderr) == (3, True)


def test_without_textual_the_view_names_the_extra_and_plain_text_works(tmp_path: Path) -> None:
    hidden = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "textual" else find(name, *rest)
sys.modules["textual"] = None
"""
    (tmp_path / "sitecustomize.py").write_text(hidden)
    terminal = Terminal("watch", PYTHONPATH=str(tmp_path))
    try:
        assert terminal.ended() == 3
        assert b"flatout[tui]" in terminal.text
    finally:
        terminal.close()
    assert run("watch", "--once", env={**os.environ, "PYTHONPATH": str(tmp_path)}).returncode == 0
