"""Reads what a session wrote: one `RankSteps` a rank, robust against files that end in mid-line."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flatout.analyze.replay import Replay
from flatout.records.session import EVENTS_FILE, RANKS_FOLDER, SESSION_FILE, WORKERS_FOLDER

NS_PER_MS = 1e6


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankSteps:
    """One process that trained: its steps as plain records, and what it said of itself."""

    folder: Path
    rank: int
    pid: int
    about: dict[str, Any]
    steps: tuple[dict[str, Any], ...]

    def wall_ms(self) -> list[float]:
        """Host time of each step without its evaluation."""
        return [
            (step["ended_ns"] - step["started_ns"] - step["evaluation_ns"]) / NS_PER_MS for step in self.steps
        ]

    def device_ms(self) -> list[float | None]:
        """Device time of each step, where its events were read; a step with an evaluation in it has none."""
        return [step.get("device_ms") if not step["evaluations"] else None for step in self.steps]


class StepsReader:
    """Follows a growing file of events; a line that is not complete yet is read the next time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.bytes_read = 0
        self._rest = b""
        self.replay = Replay()

    def read(self) -> list[dict[str, Any]]:
        """The steps that were completed since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self.bytes_read)
                data = file.read()
        except OSError:
            return []
        self.bytes_read += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [step for line in lines if line for step in self.replay.take(json.loads(line))]

    def read_all(self) -> list[dict[str, Any]]:
        """Every step, of a file that grows no more."""
        return sorted([*self.read(), *self.replay.rest()], key=lambda step: int(step["update"]))


def read_ranks(folder: Path) -> list[RankSteps]:
    """Every process of a run that made an update, by rank."""
    found = []
    for place in sorted((folder / RANKS_FOLDER).glob("*-*")):
        about = _about(place)
        steps = StepsReader(place / EVENTS_FILE).read_all()
        if steps:
            rank, _, pid = place.name.partition("-")
            found.append(
                RankSteps(folder=place, rank=int(rank), pid=int(pid), about=about, steps=tuple(steps))
            )
    return sorted(found, key=lambda one: (one.rank, one.pid))


def last_of_each(ranks: Sequence[RankSteps]) -> list[RankSteps]:
    """Without those who were a rank before another process was: a job may have started its ranks again."""

    def unix_s(one: RankSteps, step: int, name: str) -> float:
        return float(one.about.get("unix_at_zero_s", 0.0) + one.steps[step][name] * 1e-9)

    def has_a_successor(one: RankSteps) -> bool:
        ended_s = unix_s(one, -1, "ended_ns")
        return any(other.rank == one.rank and unix_s(other, 0, "started_ns") > ended_s for other in ranks)

    return [one for one in ranks if not has_a_successor(one)]


def calls_without_update(folder: Path) -> tuple[int, int, int]:
    """Processes that loaded torch and made no update, and their models' training and evaluation calls."""
    processes = training = evaluation = 0
    for place in sorted((folder / RANKS_FOLDER).glob("*-*")):
        reader = StepsReader(place / EVENTS_FILE)
        if not reader.read_all():
            processes += 1
            calls = reader.replay.unfinished()
            training, evaluation = training + calls[0], evaluation + calls[1]
    return processes, training, evaluation


def read_workers(folder: Path, parent_pid: int) -> list[dict[str, Any]]:
    """What the loader workers of one process reported."""
    found = []
    for file in sorted((folder / WORKERS_FOLDER).glob("*.json")):
        try:
            worker = json.loads(file.read_text())
        except (OSError, ValueError):
            continue
        if worker.get("parent_pid") == parent_pid and worker.get("batches"):
            found.append(worker)
    return found


def _about(place: Path) -> dict[str, Any]:
    try:
        about = json.loads((place / SESSION_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}


def loss_of(step: dict[str, Any]) -> float | None:
    """The loss of a step: the mean of its micro-batches, or None where none was seen."""
    known = [value for value in step["losses"] if value is not None]
    return sum(known) / len(known) if known else None
