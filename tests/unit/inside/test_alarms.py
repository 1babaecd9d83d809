"""A long run tells when its steps become slower, whether or not any of them is recorded."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flatout.inside.session import Session  # noqa: E402
from flatout.inside.watch import Watch  # noqa: E402
from flatout.records.session import ALARMS_FILE, Order  # noqa: E402

MS = 1_000_000


class Run:
    """Steps of known lengths under a watch."""

    def __init__(self, session: Session, every: int) -> None:
        self.session, self.watch, self.now = session, Watch(session, every), 0

    def steps(self, count: int, ms: float) -> None:
        for _ in range(count):
            self.now += round(ms * MS)
            self.session.updates += 1
            self.watch.step(self.now)

    def told(self) -> list[dict[str, Any]]:
        path = self.session.folder() / ALARMS_FILE
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    made = Session(torch, Order(folder=str(tmp_path), taps=()))
    yield made
    made.finish()


@pytest.mark.parametrize("every", [0, 100_000])
def test_slower_steps_are_told_once_with_both_paces_and_their_end_too(session: Session, every: int) -> None:
    run = Run(session, every)
    run.steps(200, 20.0)
    assert run.told() == []
    run.steps(200, 30.0)
    [alarm] = run.told()
    assert (alarm["what"], alarm["best_ms"], alarm["step_ms"]) == ("slower", 20.0, 30.0)
    assert alarm["update"] <= 300
    run.steps(100, 20.0)
    assert [one["what"] for one in run.told()] == ["slower", "as before"]


@pytest.mark.parametrize("slower", [20.0, 23.0])
def test_a_steady_run_and_one_a_little_slower_are_not(session: Session, slower: float) -> None:
    run = Run(session, 0)
    run.steps(200, 20.0)
    run.steps(400, slower)
    assert run.told() == []


def test_some_slow_milliseconds_of_quick_steps_are_no_news(session: Session) -> None:
    run = Run(session, 0)
    run.steps(10_000, 0.5)
    run.steps(100, 1.5)  # 0.15 s in which the machine had something else to do
    run.steps(10_000, 0.5)
    assert run.told() == []


def test_without_recordings_none_is_asked_for(session: Session) -> None:
    run = Run(session, 0)
    run.steps(200, 20.0)
    run.steps(400, 60.0)
    assert not run.watch.waits_for_a_call
    recorded = Run(session, 100)
    recorded.steps(400, 20.0)
    assert recorded.watch.waits_for_a_call


def test_a_job_that_runs_to_its_end_is_watched_and_a_trial_is_not(tmp_path: Path) -> None:
    assert Session(torch, Order(folder=str(tmp_path), heartbeat=True)).watch is not None
    assert Session(torch, Order(folder=str(tmp_path))).watch is None
