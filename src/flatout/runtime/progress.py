"""What a running trial has done so far, from the files that its ranks write; and when that is enough."""

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

from flatout.analyze.replay import Replay
from flatout.analyze.steady import find_steady, median_interval
from flatout.analyze.steps import NS_PER_MS, StepsReader
from flatout.records.atomic import write_atomically
from flatout.records.session import EVENTS_FILE, RANKS_FOLDER, STOP_FILE

# Ranks look for the stop file a few times a second: all must have seen it before the update it names.
_NOTICE_S = 1.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class StopRule:
    """When a trial has shown enough: after some updates, or when the median is known well enough."""

    updates: int | None = None
    precision: float = 0.01
    fewest_steps: int = 30
    fewest_seconds: float = 3.0
    most_seconds: float = 60.0


class Progress:
    """Follows the steps of all ranks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._readers: dict[str, StepsReader] = {}
        self._steps: dict[str, list[dict[str, Any]]] = {}
        self.started = time.monotonic()
        self.first_update: float | None = None
        self.last_news = self.started
        # When anything came at all, be it an evaluation's.
        self.last_sign = self.started
        self.asked_to_stop = False

    def has_waited(self) -> None:
        """For others, before its first update: only what comes now is its own time."""
        self.started = self.last_news = self.last_sign = time.monotonic()

    def look(self) -> bool:
        """Take in new steps; whether there were any."""
        news = False
        for place in (self._folder / RANKS_FOLDER).glob(f"*-*/{EVENTS_FILE}"):
            name = place.parent.name
            reader = self._readers.setdefault(name, StepsReader(place))
            before, read_before = reader.replay.updates, reader.bytes_read
            steps = reader.read()
            if reader.bytes_read > read_before:
                self.last_sign = time.monotonic()
            if steps:  # a process that loads torch and never trains is no rank
                self._steps.setdefault(name, []).extend(steps)
            # An update is news before its device times have come: these are read several steps at a time.
            news = news or bool(steps) or reader.replay.updates > before
        if news:
            self.last_news = time.monotonic()
            if self.first_update is None:
                self.first_update = self.last_news
        return news

    @property
    def updates(self) -> int:
        """Updates of the rank that is furthest, whether or not their device times have come."""
        return max((reader.replay.updates for reader in self._readers.values()), default=0)

    def median_ms(self) -> float | None:
        """The median of the last step times, for a progress line."""
        interval = median_interval([_wall_ms(step) for step in self._lead()[-50:]])
        return interval.median if interval else None

    def enough(self, rule: StopRule) -> bool:
        """Whether the steps so far tell the step time as precisely as was asked."""
        if rule.updates is not None or self.first_update is None:
            return False  # the session counts updates itself
        if time.monotonic() - self.first_update >= rule.most_seconds:
            return True
        steps = self._lead()
        times = [_device_ms(step) or _wall_ms(step) for step in steps]
        steady = find_steady(times, [bool(step["compiles"] or step["recordings"]) for step in steps])
        kept = times[steady.start :]
        interval = median_interval(kept)
        return (
            steady.reached
            and steady.shifted_at is None
            and interval is not None
            and len(kept) >= rule.fewest_steps
            and sum(kept) / 1000 >= rule.fewest_seconds
            and interval.half_width_share <= rule.precision
        )

    def lead_steps(self) -> list[dict[str, Any]]:
        """The steps of the first rank so far."""
        return self._lead()

    def lead_replay(self) -> Replay | None:
        """What is known of the first rank beside its steps."""
        training = [name for name, reader in self._readers.items() if reader.replay.updates]
        return self._readers[min(training)].replay if training else None

    def ask_to_stop(self) -> None:
        """Name an update, the same for all ranks, that none of them has reached when it hears of it."""
        if self.asked_to_stop:
            return
        self.asked_to_stop = True
        text = json.dumps({"after_update": self.update_ahead()})
        write_atomically(self._folder / STOP_FILE, text.encode())

    def update_ahead(self) -> int:
        """An update that no rank has reached by the time that all have heard of it."""
        ahead = 1
        if sum(reader.replay.updates > 0 for reader in self._readers.values()) > 1:
            # What runs just now may be faster than what ran before.
            fastest = min((_wall_ms(step) for step in self._lead()[-50:]), default=1.0)
            ahead += int(_NOTICE_S * 1000 / max(fastest, 0.05))
        return self.updates + ahead

    def _lead(self) -> list[dict[str, Any]]:
        return self._steps[min(self._steps)] if self._steps else []


def _device_ms(step: dict[str, Any]) -> float | None:
    return None if step["evaluations"] else step.get("device_ms")


def _wall_ms(step: dict[str, Any]) -> float:
    return float(step["ended_ns"] - step["started_ns"] - step["evaluation_ns"]) / NS_PER_MS
