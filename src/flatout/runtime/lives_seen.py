"""A job over all of its lives, as it is seen from outside: how it is doing, and sums that only ever grow."""

import dataclasses
import time
from pathlib import Path

from flatout.records.hang import Hang
from flatout.records.live import JobState, LiveTotals
from flatout.runtime.following import Followed, Life, added


@dataclasses.dataclass(frozen=True)
class JobEnd:
    """How it ended for good; `why` where Flatout itself was ended."""

    exit_code: int | None = None
    signal: int | None = None
    why: str = ""


class LivesSeen:
    """Told of lives and hangs by the thread that runs the job, and asked to look by another."""

    def __init__(self) -> None:
        self.number = 0
        self.end: JobEnd | None = None
        # The ranks of the life that is, or of the last one until there is another.
        self.ranks: list[Followed] = []
        self.best_step_s: float | None = None
        self._life: Life | None = None
        self._began_s = 0.0
        self._former = LiveTotals()
        self._former_updates = 0
        self._hang: Hang | None = None
        self._hangs = 0
        self._stalled = _Stopwatch()
        self._before_first_s = self._after_last_s = 0.0

    def life_begins(self, place: Path) -> None:
        """It was started, and leaves its steps in `place`."""
        self.number += 1
        self._life, self._began_s = Life(place), time.monotonic()
        self.ranks = []

    def life_is_over(self) -> None:
        """It has ended, for now or for good."""
        life, self._life = self._life, None
        if life is None:
            return
        life.close()
        self.ranks, now_s = life.ranks(), time.monotonic()
        first_s, last_s = self._first_and_last()
        # A hang that ends a life is told as that, not as an end that takes long.
        stalled_s = self._stalled.end(now_s)
        self._hang = None
        self._before_first_s += max((first_s if first_s is not None else now_s) - self._began_s, 0.0)
        if last_s is not None:
            self._after_last_s += max(now_s - last_s - stalled_s, 0.0)
        self._former = added(self._former, _totals_of(life))
        self._former_updates += self._updates_of_this()

    def look(self) -> None:
        """Take in what is new."""
        if self._life is not None:
            self._life.look()
            self.ranks = self._life.ranks()
        best_s = self.ranks[0].pace.blocks.best_s if self.ranks else None
        if best_s is not None:
            self.best_step_s = best_s if self.best_step_s is None else min(best_s, self.best_step_s)

    def hangs(self, hang: Hang) -> None:
        """It makes no more steps."""
        self._hang = hang
        self._hangs += 1
        self._stalled.begin(time.monotonic() - hang.silent_s)

    def goes_on(self) -> None:
        """It does again."""
        self._hang = None
        self._stalled.end(time.monotonic())

    @property
    def lead(self) -> Followed | None:
        """The first rank."""
        return self.ranks[0] if self.ranks else None

    def state(self) -> tuple[JobState, str]:
        """What it does, and why that is said, where it needs a word."""
        hang, lead = self._hang, self.lead
        if self.end is not None:
            return "ended", self.end.why
        if hang is not None:
            return "stalled", hang.words()
        if self._life is None and self.number:
            return "starting", "it ended, and may be started again"
        if lead is None:
            return "starting", "no update yet"
        return ("evaluating", "") if lead.is_evaluating() else ("training", "")

    def updates_made(self) -> int:
        """In all of its lives."""
        return self._former_updates + (self._updates_of_this() if self._life is not None else 0)

    def epoch(self) -> tuple[float, float] | None:
        """Seconds and updates of a pass over the data, where that was seen from beginning to end."""
        if self.lead is None:
            return None
        took_s, steps = self.lead.pace.epochs.median_s(), self.lead.pace.epochs.median_steps()
        return (took_s, steps) if took_s is not None and steps is not None else None

    def totals(self) -> LiveTotals:
        """Over all lives, but for what its devices tell."""
        now_s, before_first_s = time.monotonic(), self._before_first_s
        whole = self._former
        if self._life is not None:
            whole = added(whole, _totals_of(self._life))
            first_s, _ = self._first_and_last()
            before_first_s += max((first_s if first_s is not None else now_s) - self._began_s, 0.0)
        return dataclasses.replace(
            whole,
            hangs=self._hangs,
            before_first_step_s=before_first_s,
            stalled_s=self._stalled.total_s(now_s),
            after_last_step_s=self._after_last_s,
        )

    def _updates_of_this(self) -> int:
        return self.lead.pace.updates if self.lead is not None else 0

    def _first_and_last(self) -> tuple[float | None, float | None]:
        """When the first and the last update of any rank ended."""
        firsts = [one.pace.first_s for one in self.ranks if one.pace.first_s is not None]
        lasts = [one.pace.last_s for one in self.ranks if one.pace.last_s is not None]
        return min(firsts, default=None), max(lasts, default=None)


class _Stopwatch:
    """Sums up stretches of time."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._total_s = 0.0

    def begin(self, at_s: float) -> None:
        if self._since_s is None:
            self._since_s = at_s

    def end(self, at_s: float) -> float:
        """How long this stretch was."""
        since_s, self._since_s = self._since_s, None
        took_s = max(at_s - since_s, 0.0) if since_s is not None else 0.0
        self._total_s += took_s
        return took_s

    def total_s(self, now_s: float) -> float:
        return self._total_s + (max(now_s - self._since_s, 0.0) if self._since_s is not None else 0.0)


def _totals_of(life: Life) -> LiveTotals:
    return added(life.totals(), LiveTotals(out_of_memory=int(life.ran_out_of_memory())))
