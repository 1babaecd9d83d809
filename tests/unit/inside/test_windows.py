"""Windows of a watched run: one that cannot begin, or be written, or is given up, leaves nothing behind."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from flatout.inside import window as windows
from flatout.inside.compiler import CompilerTap
from flatout.inside.session import Session
from flatout.inside.watch import Watch
from flatout.inside.window import Window
from flatout.inside.workers import WorkersTap
from flatout.records.session import RECORDING_FILE, Order


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    session = Session(torch, Order(folder=str(tmp_path), taps=(), watch_every=10))
    session.arm()
    yield session
    session.finish()
    session.disarm()


def is_marked(session: Session) -> bool:
    return (session.folder() / RECORDING_FILE).exists()


def test_a_recording_that_cannot_start_leaves_no_mark(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> None:
        raise RuntimeError("CUPTI is in use")

    monkeypatch.setattr(windows, "start_quietly", refused)
    with pytest.raises(RuntimeError, match="CUPTI"):
        Window(session, details=False).begin()
    assert not is_marked(session)


def test_a_recording_that_cannot_be_written_leaves_no_mark(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left")

    window = Window(session, details=False)
    window.begin()
    assert is_marked(session)
    monkeypatch.setattr(windows, "_packed", full)
    with pytest.raises(OSError, match="no space"):
        window.end()
    assert not is_marked(session)


def test_a_script_that_profiles_itself_puts_a_recording_off_and_watching_goes_on(session: Session) -> None:
    watch = session.watch
    assert isinstance(watch, Watch)

    def recorded(*, own: bool = False) -> None:
        session.guarded("watch", watch.call_begins)
        for _ in range(4):
            if own and watch._window is not None:
                with profile(activities=[ProfilerActivity.CPU]):
                    torch.ones(2).sum()
            session.guarded("watch", watch.call_begins)
            if watch._window is None:
                return

    with profile(activities=[ProfilerActivity.CPU]):
        session.guarded("watch", watch.call_begins)
        assert watch._window is None
    recorded(own=True)  # given up for the script's own
    assert list(watch._written) == []
    recorded()
    assert [path.exists() for path in watch._written] == [True]
    assert not session.failed


def test_reasons_for_breaks_that_begin_alike_are_added_up(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    utils: Any = pytest.importorskip("torch._dynamo.utils")
    breaks = {"a call\n of one": 2, "a call\n of another": 3, "": 1}
    monkeypatch.setitem(utils.counters, "graph_break", breaks)
    assert CompilerTap(session).graph_breaks() == {"a call": 5, "": 1}


def test_a_worker_that_has_worked_for_long_writes_seldom(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    tap = WorkersTap(session)
    tap.enter_worker()
    written: list[int] = []
    monkeypatch.setattr(tap, "write", lambda: written.append(0))
    second = 1_000_000_000
    started = tap._totals["started_ns"]

    def worked(first_s: int, last_s: int) -> int:
        written.clear()
        for tenth in range(10 * first_s, 10 * last_s):
            tap._note(started + tenth * second // 10, started + tenth * second // 10 + second // 10)
        return len(written)

    assert worked(0, 2) >= 9
    assert worked(86_400, 86_420) <= 4
