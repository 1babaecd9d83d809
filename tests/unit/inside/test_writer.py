"""Events reach the file in order, from a thread, and nothing that goes wrong there reaches the job."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flatout.inside import writer as module
from flatout.inside.log import EventLog
from flatout.inside.writer import EventWriter
from flatout.records.session import EVENTS_FILE, ON_ITS_WAY, SESSION_FILE

Make = Callable[..., EventWriter]


@pytest.fixture
def log() -> EventLog:
    return EventLog()


@pytest.fixture
def make(log: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setattr(module, "_FLUSH_S", 0.005)
    made: list[EventWriter] = []

    def start(
        describe: Callable[[], dict[str, Any]] = lambda: {"rank": 0},
        on_tick: Callable[[], None] = lambda: None,
    ) -> EventWriter:
        writer = EventWriter(tmp_path / "ranks" / "0-1", log, describe, on_tick)
        made.append(writer)
        return writer

    yield start
    for writer in made:
        writer.pause()


def events_in(writer: EventWriter) -> list[Any]:
    path = writer.folder / EVENTS_FILE
    if not path.exists():
        return []
    return [event for line in path.read_text().splitlines() for event in json.loads(line)]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_log_gives_everything_once_and_in_order() -> None:
    log = EventLog()
    for place in range(5):
        log.add(("step", place))
    assert log.drain() == [("step", place) for place in range(5)]
    assert log.drain() == []


def test_events_are_written_while_the_job_runs(make: Make, log: EventLog) -> None:
    writer = make()
    log.add(("loader", 1, 2, 0, 7))
    wait_until(lambda: events_in(writer) == [["loader", 1, 2, 0, 7]])
    wait_until((writer.folder / SESSION_FILE).exists)


def test_what_is_left_is_written_at_the_end(make: Make, log: EventLog) -> None:
    writer = make(lambda: {"updates": 3})
    for place in range(1000):
        log.add(("step", place))
    writer.close()
    writer.pause()  # its thread may have been about to write
    assert events_in(writer) == [["step", place] for place in range(1000)]
    assert json.loads((writer.folder / SESSION_FILE).read_text()) == {"updates": 3}
    assert sorted(path.name for path in writer.folder.iterdir()) == [EVENTS_FILE, SESSION_FILE]


def test_closing_twice_writes_once(make: Make, log: EventLog) -> None:
    writer = make()
    log.add(("step", 1))
    writer.close()
    log.add(("step", 2))
    writer.close()
    assert events_in(writer) == [["step", 1], ["step", 2]]


def test_no_event_is_lost_or_written_twice_while_many_come_in(make: Make, log: EventLog) -> None:
    writer = make()
    for place in range(20_000):
        log.add(("step", place))
    writer.close()
    writer.pause()
    assert [event[1] for event in events_in(writer)] == list(range(20_000))


def test_a_number_that_a_device_has_not_delivered_leaves_its_place_open(make: Make, log: EventLog) -> None:
    writer = make()
    log.add(("backward", 1, 2, object()))
    log.add(("backward", 3, 4, float("nan")))
    writer.close()
    first, second = events_in(writer)
    assert first == ["backward", 1, 2, ON_ITS_WAY]
    assert second[3] != second[3]


def writers() -> set[threading.Thread]:
    """Also those of tests that ran in this process before."""
    return {thread for thread in threading.enumerate() if thread.name == "flatout-writer"}


def test_a_paused_writer_has_no_thread_and_goes_on_where_it_was(make: Make, log: EventLog) -> None:
    before = writers()
    writer = make()
    writer.pause()
    assert not writers() - before
    log.add(("step", 1))
    time.sleep(0.05)
    assert events_in(writer) == []
    writer.resume()
    wait_until(lambda: events_in(writer) == [["step", 1]])


def test_the_thread_never_keeps_a_process_alive(make: Make) -> None:
    before = writers()
    make()
    [thread] = writers() - before
    assert thread.daemon


def test_a_tick_that_fails_does_not_end_the_thread(make: Make, log: EventLog) -> None:
    ticks = []

    def tick() -> None:
        ticks.append(1)
        raise ValueError("a defect of ours")

    writer = make(on_tick=tick)
    wait_until(lambda: len(ticks) > 2)
    log.add(("step", 1))
    wait_until(lambda: events_in(writer) == [["step", 1]])


def test_a_description_that_fails_costs_no_events_and_reaches_nobody(make: Make, log: EventLog) -> None:
    def fail() -> dict[str, Any]:
        raise RuntimeError("dictionary changed size during iteration")

    writer = make(fail)
    log.add(("step", 1))
    writer.close()
    assert events_in(writer) == [["step", 1]]
    assert not (writer.folder / SESSION_FILE).exists()


def test_a_disk_that_is_full_troubles_nobody(make: Make, log: EventLog) -> None:
    writer = make()
    writer.pause()
    (writer.folder / EVENTS_FILE).unlink(missing_ok=True)
    (writer.folder / EVENTS_FILE).mkdir()  # what cannot be opened stands for what cannot be written
    log.add(("step", 1))
    writer.close()
    (writer.folder / EVENTS_FILE).rmdir()
    log.add(("step", 2))
    writer.close()
    assert not (writer.folder / EVENTS_FILE).exists()  # a file with a hole would be read as whole
    assert log.drain() == []  # and memory does not fill up instead


def test_the_description_is_never_seen_half_written(make: Make) -> None:
    writer = make(lambda: {"long": "x" * 200_000})
    for _ in range(50):
        writer._flush(describe=True)
        json.loads((writer.folder / SESSION_FILE).read_text())
