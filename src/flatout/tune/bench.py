"""Drives a running job through the comparisons that a search asks for; a job that dies is started again."""

import contextlib
import json
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path

from flatout.records.atomic import write_atomically
from flatout.records.session import ARM_FILE, ARMS_FILE, lever_key
from flatout.records.trial import Trial
from flatout.runtime.progress import Progress
from flatout.runtime.trial import OnProgress, TrialPlan, run_trial
from flatout.tune.arms import Arm, ArmResult, Ask, Comparison, block_length
from flatout.tune.limits import TOO_SHORT

Search = Generator[Ask, list[ArmResult], None]
# What was answered before, by the arms that were compared.
Answers = Mapping[str, list[ArmResult]]

# A job that dies under one arm after the other has shown that it does not want to be tuned.
_STARTS_AT_MOST = 8
# Without a sign of life. Compiling takes its time; nothing else that an arm does should.
_HUNG_S = 90.0
_COMPILES = ("compile", "attention", "sdpa-backend", "cudnn-autotune")


def key_of(arms: Sequence[Arm]) -> str:
    """What was compared, in words."""
    return json.dumps([[choice.words() for choice in arm] for arm in arms])


class Bench:
    """A search and the job that answers it."""

    def __init__(
        self,
        search: Search,
        on_ask: Callable[[Ask], None],
        on_answer: Callable[[Ask, list[ArmResult], float], None] = lambda _ask, _results, _took_s: None,
        answers: Answers | None = None,
    ) -> None:
        self._search = search
        self._on_ask = on_ask
        self._on_answer = on_answer
        self._answers = answers or {}
        self._comparison: Comparison | None = None
        self._generation = 0
        # What a step takes, by arm, and as the job began.
        self._step_ms: dict[str, float] = {}
        self._pace_ms = 1.0
        self._taken = 0
        self._folder: Path | None = None
        self._asked_at = 0.0
        self._from_update = 0
        self.finished = False

    def run(self, plan: TrialPlan, folder: Path, on_progress: OnProgress) -> list[Trial]:
        """Answer every question of the search; the trials that it took."""
        trials: list[Trial] = []
        self._next(None)
        while not self.finished and len(trials) < _STARTS_AT_MOST:
            place = folder / f"{len(list(folder.iterdir())) + 1}-bench"
            self._taken, self._folder, self._from_update = 0, None, 0
            trial = run_trial(plan, place, on_progress=on_progress)
            trials.append(trial)
            if not self.finished:
                self._after_the_end(trial)
        self._search.close()
        return trials

    @property
    def silence_s(self) -> float | None:
        """Arms that compile may take as long as any job; others that fall silent have hung."""
        if self._comparison is None or self._folder is None:
            return None
        compiles = any(choice.id in _COMPILES for arm in self._comparison.ask.arms for choice in arm)
        return None if compiles else _HUNG_S

    def look(self, folder: Path, progress: Progress) -> bool:
        """New steps may have come: the trial runner asks a few times a second."""
        steps = progress.lead_steps()
        self._from_update = progress.update_ahead()
        if self._folder is None and len(steps) >= 2:
            # The job goes: hand it the arms, in blocks that suit its pace.
            self._pace_ms = progress.median_ms() or 1.0
            self._folder = folder
            if self._comparison is not None:
                self._comparison.block_updates = self._blocks(self._comparison.ask)
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
                keys = [lever_key(choice.id, choice.settings) for choice in arm]
                dropped = [replay.dropped[key] for key in keys if key in replay.dropped]
                if dropped:
                    comparison.failed[number] = dropped[0]
        settled = len(comparison.settled)
        if comparison.is_enough() or len(comparison.failed) >= len(comparison.ask.arms) - 1 > 0:
            self._next(comparison.results())
        elif len(comparison.settled) > settled:
            self._write_arms()
        return self.finished

    def _next(self, results: list[ArmResult] | None) -> None:
        if results is not None and self._comparison is not None:
            for arm, result in zip(self._comparison.ask.arms, results, strict=True):
                if result.step_ms is not None:
                    self._step_ms[key_of([arm])] = result.step_ms
            self._on_answer(self._comparison.ask, results, time.monotonic() - self._asked_at)
        try:
            ask = next(self._search) if results is None else self._search.send(results)
            while (known := self._answers.get(key_of(ask.arms))) is not None:
                self._on_answer(ask, known, 0.0)
                ask = self._search.send(known)
        except StopIteration:
            self.finished, self._comparison = True, None
            return
        self._generation += 1
        self._comparison = Comparison(ask, self._generation, self._blocks(ask))
        self._asked_at = time.monotonic()
        self._on_ask(ask)
        if self._folder is not None:
            self._write_arms()

    def _blocks(self, ask: Ask) -> list[int]:
        """Blocks of about the same time; of an arm that was never on, as if it were the first."""
        first = self._step_ms.get(key_of(ask.arms[:1]), self._pace_ms)
        return [block_length(self._step_ms.get(key_of([arm]), first)) for arm in ask.arms]

    def _write_arms(self) -> None:
        assert self._folder is not None
        assert self._comparison is not None
        arms = [
            (number, arm)
            for number, arm in enumerate(self._comparison.ask.arms)
            if number not in self._comparison.failed and number not in self._comparison.settled
        ]
        document = {
            "generation": self._generation,
            "numbers": [number for number, _ in arms],
            "arms": [[choice.order() for choice in arm] for _, arm in arms],
            "block_updates": [self._comparison.block_updates[number] for number, _ in arms],
            "from_update": self._from_update,
        }
        write_atomically(self._folder / ARMS_FILE, json.dumps(document).encode())

    def _after_the_end(self, trial: Trial) -> None:
        """The job has ended, and the search has not: by its own end, or by what an arm did to it."""
        comparison = self._comparison
        assert comparison is not None
        if trial.went_well:
            if self._folder is None or trial.updates < 2 * max(comparison.block_updates):
                self._fail(comparison, f"the job ends after {trial.updates} updates: {TOO_SHORT}")
            return
        guilty = self._arm_that_was_on(Path(trial.folder))
        if guilty and guilty not in comparison.failed:
            self._fail(comparison, trial.ending, only=guilty)
        else:
            self._fail(comparison, trial.ending)

    def _arm_that_was_on(self, folder: Path) -> int:
        """The arm under which the job died; 0 where that was the base, or before any came on."""
        with contextlib.suppress(OSError, ValueError):
            generation, number = map(int, (folder / ARM_FILE).read_text().split())
            return number if generation == self._generation else 0
        return 0

    def _fail(self, comparison: Comparison, words: str, only: int | None = None) -> None:
        arms = range(len(comparison.ask.arms)) if only is None else (only,)
        for number in arms:
            comparison.failed.setdefault(number, words)
        if len(comparison.failed) >= len(comparison.ask.arms) - 1:
            self._next(comparison.results())
