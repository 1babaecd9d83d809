"""Drives a running job through the comparisons that a search asks for; a job that dies is started again."""

import json
import time
from collections.abc import Callable, Generator
from pathlib import Path

from flatout.records.atomic import write_atomically
from flatout.records.session import ARMS_FILE
from flatout.records.trial import Trial
from flatout.runtime.progress import Progress
from flatout.runtime.trial import OnProgress, TrialPlan, run_trial
from flatout.tune.arms import ArmResult, Ask, Comparison, block_length

Search = Generator[Ask, list[ArmResult], None]

# A job that dies under one arm after the other has shown that it does not want to be tuned.
_STARTS_AT_MOST = 6


class Bench:
    """A search and the job that answers it."""

    def __init__(
        self,
        search: Search,
        on_ask: Callable[[Ask], None],
        on_answer: Callable[[Ask, list[ArmResult], float], None] = lambda _ask, _results, _took_s: None,
    ) -> None:
        self._search = search
        self._on_ask = on_ask
        self._on_answer = on_answer
        self._comparison: Comparison | None = None
        self._generation = 0
        self._block = 1
        self._taken = 0
        self._folder: Path | None = None
        self._asked_at = 0.0
        self.finished = False

    def run(self, plan: TrialPlan, folder: Path, on_progress: OnProgress) -> list[Trial]:
        """Answer every question of the search; the trials that it took."""
        trials: list[Trial] = []
        self._next(None)
        while not self.finished and len(trials) < _STARTS_AT_MOST:
            place = folder / f"{len(list(folder.iterdir())) + 1}-bench"
            self._taken, self._folder = 0, None
            trial = run_trial(plan, place, on_progress=on_progress)
            trials.append(trial)
            if not self.finished:
                self._after_the_end(trial)
        self._search.close()
        return trials

    def look(self, folder: Path, progress: Progress) -> bool:
        """New steps may have come: the trial runner asks a few times a second."""
        steps = progress.lead_steps()
        if self._folder is None and len(steps) >= 2:
            # The job goes: hand it the arms, in blocks that suit its pace.
            self._block = block_length(progress.median_ms() or 1.0)
            self._folder = folder
            self._write_arms()
        for step in steps[self._taken :]:
            if self._comparison is not None:
                self._comparison.take(step)
        self._taken = len(steps)
        comparison, replay = self._comparison, progress.lead_replay()
        if comparison is None or self._folder is None:
            return self.finished
        if replay is not None and replay.dropped:
            for number, arm in enumerate(comparison.ask.arms):
                dropped = [choice.id for choice in arm if choice.id in replay.dropped]
                if dropped:
                    comparison.failed[number] = replay.dropped[dropped[0]]
        if comparison.is_enough(self._block) or len(comparison.failed) >= len(comparison.ask.arms) - 1 > 0:
            self._next(comparison.results(self._block))
        return self.finished

    def _next(self, results: list[ArmResult] | None) -> None:
        if results is not None and self._comparison is not None:
            self._on_answer(self._comparison.ask, results, time.monotonic() - self._asked_at)
        try:
            ask = next(self._search) if results is None else self._search.send(results)
        except StopIteration:
            self.finished, self._comparison = True, None
            return
        self._generation += 1
        self._comparison = Comparison(ask, self._generation)
        self._asked_at = time.monotonic()
        self._on_ask(ask)
        if self._folder is not None:
            self._write_arms()

    def _write_arms(self) -> None:
        assert self._folder is not None
        assert self._comparison is not None
        document = {
            "generation": self._generation,
            "arms": [[choice.order() for choice in arm] for arm in self._comparison.ask.arms],
            "block_updates": self._block,
        }
        write_atomically(self._folder / ARMS_FILE, json.dumps(document).encode())

    def _after_the_end(self, trial: Trial) -> None:
        """The job has ended, and the search has not: by its own end, or by what an arm did to it."""
        comparison = self._comparison
        assert comparison is not None
        if trial.outcome in ("ended", "stopped"):
            if self._folder is None or trial.updates < 2 * self._block:
                self._fail_all(f"the job ends after {trial.updates} updates: too few to compare")
            return
        last = [line.strip() for line in trial.said if line.strip()][-1:]
        words = {
            "silent": "the job hung: no update for longer than the silence limit",
            "killed": f"the job was killed by signal {trial.signal}",
        }.get(trial.outcome, f"the job failed: {last[0][:200] if last else trial.exit_code}")
        alone = [number for number in range(1, len(comparison.ask.arms)) if number not in comparison.failed]
        if len(alone) == 1:
            comparison.failed[alone[0]] = words
            self._next(comparison.results(self._block))
        else:
            self._fail_all(words)

    def _fail_all(self, words: str) -> None:
        comparison = self._comparison
        assert comparison is not None
        for number in range(len(comparison.ask.arms)):
            comparison.failed.setdefault(number, words)
        self._next(comparison.results(self._block))
