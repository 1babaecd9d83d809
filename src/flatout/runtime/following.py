"""Follows one life of a job from outside: every process that trains, from the events that it writes."""

import contextlib
import json
import math
import os
from pathlib import Path
from typing import Any

import psutil

from flatout.analyze.pace import RankPace
from flatout.analyze.steps import StepsReader
from flatout.records.hang import HEARTBEAT_FILE, Heartbeat, read_heartbeat
from flatout.records.live import LiveRank, LiveTotals, StepTimes
from flatout.records.session import EVENTS_FILE, OUT_OF_MEMORY_FILE, RANKS_FOLDER, SESSION_FILE

# Events since the last update that are kept; an evaluation may go on for hours.
_MOST_OPEN = 20_000


class Followed:
    """One process that trains, or may train yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        rank, _, pid = folder.name.partition("-")
        self.rank, self.pid = int(rank), int(pid)
        self.pace = RankPace()
        self.about: dict[str, Any] = {}
        self._reader = StepsReader(folder / EVENTS_FILE)
        self._described_at = 0
        self.beat: Heartbeat | None = None

    def look(self) -> None:
        """Take in what is new."""
        for step in self._reader.read():
            self.pace.take(step)
        self._reader.replay.thin_out(_MOST_OPEN)
        beat = read_heartbeat(self.folder / HEARTBEAT_FILE)
        self.beat = beat if beat is not None and beat.updates else None
        with contextlib.suppress(OSError, ValueError):
            changed = (self.folder / SESSION_FILE).stat().st_mtime_ns
            if changed != self._described_at:
                self.about = json.loads((self.folder / SESSION_FILE).read_bytes())
                self._described_at = changed

    def close(self) -> None:
        """There will be no more: what waited for a device that never answered is a step, too."""
        self.look()
        for step in self._reader.replay.rest():
            self.pace.take(step)

    def is_evaluating(self) -> bool:
        """Whether it evaluates just now."""
        return self._reader.replay.is_evaluating()

    def updates(self) -> int:
        """So many of the whole training: one that came back to a checkpoint begins there."""
        resumed = (self.about.get("protection") or {}).get("resumed_at") or 0
        return int(resumed) + max(self.pace.updates, self.beat.updates if self.beat is not None else 0)

    def skipped_updates(self) -> int:
        """By a GradScaler, as its steps tell, or by --on-nan, which counts those of the scaler, too."""
        told = (self.about.get("finite_updates") or {}).get("skipped") or 0
        return max(int(told), self.pace.skipped_updates)

    def loss_scale(self) -> float | None:
        """Of its GradScaler."""
        told = (self.about.get("finite_updates") or {}).get("loss_scale")
        scale = told if told is not None else self.about.get("loss_scale")
        return float(scale) if isinstance(scale, int | float) and math.isfinite(scale) else None

    def is_gone(self) -> bool:
        """Whether the process has ended."""
        return not psutil.pid_exists(self.pid)

    def live(self, now_s: float) -> LiveRank:
        """As others see it; `now_s` is of the machine's steady clock."""
        return LiveRank(
            rank=self.rank,
            pid=self.pid,
            updates=self.updates(),
            step_s=self.pace.blocks.median_s(),
            silent_s=max(now_s - self.beat.updated_s, 0.0) if self.beat is not None else None,
        )


class Life:
    """One start of a job: its ranks, and sums over all of its processes."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._followed: dict[str, Followed] = {}
        # Of processes that are gone, and have been followed by others of the same rank.
        self._over = LiveTotals()
        self._forgotten: set[str] = set()

    def look(self) -> None:
        """Take in what is new; a process whose place another has taken is only remembered as a sum."""
        with contextlib.suppress(FileNotFoundError):
            for name in sorted(os.listdir(self._place / RANKS_FOLDER)):  # noqa: PTH208 - names are enough
                if name not in self._followed and name not in self._forgotten and _is_a_rank(name):
                    self._followed[name] = Followed(self._place / RANKS_FOLDER / name)
        for one in self._followed.values():
            one.look()
        self._forget()

    def close(self) -> None:
        """The job has ended."""
        self.look()
        for one in self._followed.values():
            one.close()

    def ranks(self) -> list[Followed]:
        """Of each rank the process that trains now: the one that made the last update."""
        newest: dict[int, Followed] = {}
        for one in self._followed.values():
            before = newest.get(one.rank)
            if one.updates() and (before is None or _last_update_s(one) >= _last_update_s(before)):
                newest[one.rank] = one
        return [newest[rank] for rank in sorted(newest)]

    def ran_out_of_memory(self) -> bool:
        """Whether any of its processes did."""
        return any((self._place / RANKS_FOLDER).glob(f"*/{OUT_OF_MEMORY_FILE}"))

    def totals(self) -> LiveTotals:
        """Samples and losses of all ranks; time and steps of the first, with which the others keep pace."""
        ranks = self.ranks()
        lead = ranks[0].rank if ranks else 0
        return added(self._over, *(_totals(one, lead) for one in self._followed.values()))

    def _forget(self) -> None:
        ranks = self.ranks()
        lead = ranks[0].rank if ranks else 0
        for name, one in list(self._followed.items()):
            if one.updates() and one not in ranks and one.is_gone():
                one.close()
                self._over = added(self._over, _totals(one, lead))
                self._forgotten.add(name)
                del self._followed[name]


def added(*parts: LiveTotals) -> LiveTotals:
    """Sums of what a job's processes or lives did; what its devices did is told otherwise."""
    counts = [sum(found) for found in zip(*(part.steps.counts for part in parts), strict=True)]
    return LiveTotals(
        steps=StepTimes(counts=tuple(counts), sum_s=sum(part.steps.sum_s for part in parts)),
        samples=sum(part.samples for part in parts),
        tokens=sum(part.tokens for part in parts),
        data_wait_s=sum(part.data_wait_s for part in parts),
        evaluation_s=sum(part.evaluation_s for part in parts),
        losses_not_finite=sum(part.losses_not_finite for part in parts),
        skipped_updates=sum(part.skipped_updates for part in parts),
        out_of_memory=sum(part.out_of_memory for part in parts),
        hangs=sum(part.hangs for part in parts),
        slowdowns=sum(part.slowdowns for part in parts),
    )


def _totals(one: Followed, lead: int) -> LiveTotals:
    pace = one.pace
    of_all = LiveTotals(samples=pace.samples, tokens=pace.tokens, losses_not_finite=pace.losses_not_finite)
    if one.rank != lead:
        return of_all
    of_the_first = LiveTotals(
        steps=pace.steps(),
        data_wait_s=pace.data_wait_s,
        evaluation_s=pace.evaluation_s,
        skipped_updates=one.skipped_updates(),
        slowdowns=pace.blocks.slowdowns,
    )
    return added(of_all, of_the_first)


def _last_update_s(one: Followed) -> float:
    return one.beat.updated_s if one.beat is not None else 0.0


def _is_a_rank(name: str) -> bool:
    rank, _, pid = name.partition("-")
    return rank.isdigit() and pid.isdigit()
