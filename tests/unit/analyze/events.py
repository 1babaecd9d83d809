"""Events as a session logs them, and run folders as it leaves them, made by hand."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flatout.analyze.steps import RankSteps
from flatout.records.session import EVENTS_FILE, RANKS_FOLDER, SESSION_FILE
from flatout.records.trial import Shield, Trial

MS = 1_000_000
ME, OTHER = 1, 2
START, END = -1, -2

Event = tuple[Any, ...]


def loader(start: int, end: int, number: int = 0, thread: int = ME) -> Event:
    return ("loader", start, end, number, thread)


def copy(start: int, end: int, size: int = 1024, thread: int = ME) -> Event:
    return ("copy", start, end, size, thread)


def forward(
    start: int,
    end: int,
    *,
    root: int = 0,
    gradients: bool = True,
    training: bool = True,
    shape: tuple[int, ...] | None = (8, 3),
    is_float: bool = True,
    thread: int = ME,
) -> Event:
    return ("forward", start, end, root, gradients, training, shape, is_float, thread)


def backward(start: int, end: int, loss: Any = 1.0) -> Event:
    return ("backward", start, end, loss)


def clipping(start: int, end: int, norm: Any = 1.0) -> Event:
    return ("clipping", start, end, norm)


def optimizer(start: int, end: int) -> Event:
    return ("optimizer", start, end)


def mode(at: int, training: bool) -> Event:
    return ("mode", at, at, training)


def closed(at: int, update: int, memory: dict[str, int] | None = None) -> Event:
    return ("step", at, update, memory or {})


def unwatched(at: int, update: int) -> Event:
    """The end of a step that nobody looked at."""
    return ("step", at, update, False)


def device(
    update: int,
    took_ms: float | None,
    *,
    parts: dict[str, float] | None = None,
    losses: Sequence[Any] = (),
    norms: Sequence[Any] = (),
    reason: str = "",
) -> Event:
    return ("device", update, took_ms, parts, list(losses), list(norms), reason)


def step(**changes: Any) -> dict[str, Any]:
    """A step of 100 ms as `replay` makes it: 10 in the loader, 20 forward, 30 backward, 5 optimizer."""
    whole: dict[str, Any] = {
        "update": 1,
        "watched": True,
        "started_ns": 0,
        "ended_ns": 100 * MS,
        "loader_ns": 10 * MS,
        "loader_batches": 1,
        "copy_ns": 0,
        "copies": 0,
        "copy_bytes": 0,
        "forward_ns": 20 * MS,
        "forwards": 1,
        "backward_ns": 30 * MS,
        "backwards": 1,
        "clipping_ns": 0,
        "optimizer_ns": 5 * MS,
        "evaluation_ns": 0,
        "evaluations": 0,
        "collector_ns": 0,
        "compile_ns": 0,
        "compiles": 0,
        "recompiles": 0,
        "recordings": 0,
        "recorded": 0,
        "skipped_updates": 0,
        "samples": 8,
        "tokens": 0,
        "losses": [1.0],
        "gradient_norms": [],
        "loaders": {0: (1, 10 * MS)},
    }
    return {**whole, **changes}


def steps(count: int, *, took_ms: float = 100.0, **changes: Any) -> list[dict[str, Any]]:
    """Equal steps, one after the other."""
    took = round(took_ms * MS)
    return [
        step(update=place + 1, started_ns=place * took, ended_ns=(place + 1) * took, **changes)
        for place in range(count)
    ]


def rank_of(some: Sequence[dict[str, Any]], about: dict[str, Any] | None = None) -> RankSteps:
    return RankSteps(folder=Path("nowhere"), rank=0, pid=100, about=about or {}, steps=tuple(some))


def training(count: int, *, took: int = 100 * MS, loss: Any = 1.0) -> list[Event]:
    """The events of a plain training loop, from 0."""
    events: list[Event] = [("start", 0), ("thread", ME), ("root", 0)]
    for place in range(count):
        at, unit = place * took, took // 100
        events += [
            loader(at, at + 10 * unit),
            forward(at + 10 * unit, at + 30 * unit),
            backward(at + 40 * unit, at + 70 * unit, loss),
            optimizer(at + 90 * unit, at + 100 * unit),
            closed(at + 100 * unit, place + 1),
        ]
    return events


def write_rank(
    folder: Path, events: Sequence[Event], about: dict[str, Any] | None = None, *, name: str = "0-100"
) -> Path:
    """A rank's folder as its session leaves it, three events a line."""
    place = folder / RANKS_FOLDER / name
    place.mkdir(parents=True)
    lines = [json.dumps(events[first : first + 3]) + "\n" for first in range(0, len(events), 3)]
    (place / EVENTS_FILE).write_text("".join(lines))
    if about is not None:
        (place / SESSION_FILE).write_text(json.dumps(about))
    return place


def trial(**changes: Any) -> Trial:
    facts: dict[str, Any] = {
        "name": "profile",
        "folder": "/tmp/run",
        "command": ("python", "train.py"),
        "outcome": "stopped",
        "updates": 40,
        "ranks": 1,
        "took_s": 12.0,
        "shield": Shield(kind="overlay"),
        "exit_code": 0,
        "to_first_update_s": 2.5,
    }
    return Trial(**{**facts, **changes})
