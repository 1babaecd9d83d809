"""Runs of a job with batches of several sizes, each in a process of its own."""

import dataclasses
from collections.abc import Iterable

from flatout.records.batch import BatchTrial
from flatout.records.plan import Choice
from flatout.records.profile import Profile
from flatout.records.tuning import Pace
from flatout.tune.batching import Source
from flatout.tune.knee import FITS, TOO_FEW, TOO_LARGE
from flatout.tune.measuring import Measurer

# A run of another size than asked for shows that the option is not the one.
_ABOUT = 0.01
# Steps of a large batch are long, and alike: a few of them tell.
_FEWEST_STEPS = 10


class Sizes:
    """One job under some levers; `was` is its batch as written, and `now` its pace as written."""

    def __init__(self, measurer: Measurer, levers: tuple[Choice, ...], now: Pace, was: int) -> None:
        self._measurer = measurer
        self._levers = levers
        self._now = now
        self._was = was
        self._source = Source()
        # What was executed, by size.
        self._known: dict[int, BatchTrial] = {}
        # How it went, and how many samples an update of that run saw.
        self.paces: dict[int, Pace] = {}
        self.samples: dict[int, float] = {}
        # Ways to change the size that do not reach the model, and what was seen of them.
        self.in_vain: list[tuple[Choice, str]] = []

    def find_source(self, sources: Iterable[Source], size: int) -> bool:
        """Whether one of these changes the size: the first that shows in the batches that reach the model."""
        for source in sources:
            self._source = source
            trial, reached = self._try(size)
            is_it = reached is None or abs(reached / size - 1) <= _ABOUT or self._was < reached < size
            if is_it and (trial.samples_per_s is not None or trial.outcome != FITS):
                self._known[size] = trial
                return True
            choice, count = self.choice(size), "no" if reached is None else f"{reached:g}"
            self.in_vain.append((choice, f"with {choice.words()} {count} samples reach the model"))
        return False

    def choice(self, size: int) -> Choice:
        """A plan's lever with this size."""
        return self._source.choice(size, self._was)

    @property
    def option(self) -> str:
        """How the size is given, in words."""
        return self._source.option or "DataLoader(batch_size=...)"

    def as_it_is(self) -> BatchTrial:
        """The size as written, under the levers."""
        found = self._measurer.measure("as it is, under the plan", self._levers, self._now)
        return self.trial(self._was, found.pace, found.ending)

    def run(self, size: int) -> BatchTrial:
        """One size; executed once."""
        if size not in self._known:
            self._known[size] = self._try(size)[0]
        return self._known[size]

    def trial(self, size: int, pace: Pace | None, ended: str = "stopped") -> BatchTrial:
        """What a pace says of a size."""
        if pace is None:
            return BatchTrial(batch=size, samples_per_s=None, step_ms=None, peak_bytes=None, outcome=ended)
        return BatchTrial(
            batch=size,
            samples_per_s=pace.samples_per_s,
            step_ms=pace.step_ms,
            peak_bytes=pace.peak_bytes,
            outcome=TOO_LARGE if self._measurer.is_too_large(pace) else FITS,
        )

    def _try(self, size: int) -> tuple[BatchTrial, float | None]:
        """A run, and how many samples reached the model in each of its calls."""
        levers = (*self._levers, self.choice(size))
        found = self._measurer.measure(f"batch {size}", levers, self._now, fewest_steps=_FEWEST_STEPS)
        reached = _reached(found.profile)
        if found.profile is not None and found.profile.samples_per_step is not None:
            self.samples[size] = found.profile.samples_per_step
        if found.pace is not None:
            self.paces[size] = found.pace
        trial = self.trial(size, found.pace, TOO_FEW if found.too_short else found.ending)
        if reached is not None:
            trial = dataclasses.replace(trial, reached=round(reached))
            if reached < size * (1 - _ABOUT):
                trial = _too_few(size, round(reached))
        return trial, reached


def _too_few(size: int, reached: int) -> BatchTrial:
    return BatchTrial(
        batch=size, samples_per_s=None, step_ms=None, peak_bytes=None, outcome=TOO_FEW, reached=reached
    )


def batch_of(profile: Profile) -> int:
    """The batch as a script has it; 0 where that was not seen."""
    return round(profile.largest_batch or 0)


def _reached(profile: Profile | None) -> float | None:
    return profile.largest_batch if profile is not None else None
