"""How a job ended is what trackers list its run by: as its end is known, so it arrives there."""

import dataclasses
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from flatout.monitor.sinks.catalogue import KINDS, Target
from flatout.monitor.sinks.feed import Feed
from flatout.monitor.sinks.mlflow_run import MlflowRun
from flatout.monitor.sinks.protocol import About, Ending, ending_of
from flatout.monitor.sinks.wandb_run import WandbRun
from flatout.records.points import Point
from flatout.runtime.lives_seen import JobEnd, LivesSeen
from tests.unit.monitor.test_sink_outbox import Kept

ENDS = [
    ((0, None), "FINISHED", 0),
    ((3, None), "FAILED", 3),
    ((None, 9), "KILLED", 137),
    # Flatout itself was ended before the job was over.
    ((None, None), "KILLED", 143),
]


class Recorded:
    """Stands for a tracker's package, and for its runs and clients: keeps what it is asked."""

    run = None

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.info = types.SimpleNamespace(run_id="r")

    def __getattr__(self, name: str) -> Any:
        def ask(*words: Any, **named: Any) -> Any:
            self.asked.append((name, words, named))
            return self

        return ask


@pytest.mark.parametrize(("end", "status", "_code"), ENDS)
def test_mlflow_is_told_how_it_ended(
    monkeypatch: pytest.MonkeyPatch, end: tuple[int | None, int | None], status: str, _code: int
) -> None:
    mlflow = Recorded()
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "mlflow.entities", types.SimpleNamespace(Metric=object))
    MlflowRun("x", About()).close(ending_of(*end))
    assert mlflow.asked[-1] == ("set_terminated", ("r", status), {})


@pytest.mark.parametrize(("end", "_status", "code"), ENDS)
def test_wandb_is_told_how_it_ended(
    monkeypatch: pytest.MonkeyPatch, end: tuple[int | None, int | None], _status: str, code: int
) -> None:
    wandb = Recorded()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    WandbRun("x", About()).close(ending_of(*end))
    assert wandb.asked[-1] == ("finish", (), {"exit_code": code})


@pytest.mark.parametrize(
    ("end", "ending"),
    [(JobEnd(0), Ending()), (JobEnd(3), Ending(3)), (JobEnd(signal=9), Ending(137, was_killed=True))],
)
def test_a_feed_hands_on_the_end_of_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: JobEnd, ending: Ending
) -> None:
    sink = Kept()
    monkeypatch.setitem(KINDS, "jsonl", dataclasses.replace(KINDS["jsonl"], open=lambda *_: sink))
    living: Any = types.SimpleNamespace(seen=LivesSeen())
    with Feed([Target("jsonl", "x")], "r", living, About(), lambda _text: None) as feed:
        for box in feed._outboxes:
            box.put(Point(1, 0.0, {"loss": 1.0}))
        living.seen.end = end
    assert sink.ending == ending
