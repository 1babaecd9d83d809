"""Runs of the job under some levers, each in a process of its own, and how fast it went."""

import dataclasses
from pathlib import Path

from flatout.records.plan import Choice
from flatout.records.trial import Trial
from flatout.records.tuning import Pace
from flatout.runtime.progress import StopRule
from flatout.runtime.samples import DeviceSampler
from flatout.runtime.trial import OnProgress, TrialPlan, run_trial
from flatout.tune.pace import Measured, measured_in
from flatout.tune.request import TuneRequest

_FEWEST_STEPS = 20


class Measurer:
    """What every stage measures with."""

    def __init__(self, request: TuneRequest, folder: Path, on_progress: OnProgress) -> None:
        self.request = request
        self.tell = on_progress
        self._folder = folder
        # A baseline that takes half of the time allowed leaves little to try.
        most_s = min(12.0, max(3.0, request.budget_s / 10))
        self.rule = StopRule(
            precision=0.01, fewest_steps=_FEWEST_STEPS, fewest_seconds=2.0, most_seconds=most_s
        )

    def measure(
        self, what: str, levers: tuple[Choice, ...], as_written: Pace, *, fewest_steps: int = _FEWEST_STEPS
    ) -> Measured:
        """One run."""
        place = self._folder / f"{len(list(self._folder.iterdir())) + 1}-measure"
        rule = dataclasses.replace(self.rule, fewest_steps=fewest_steps)
        plan = self.request.trial(what, rule, levers)
        return self.run(plan, place, self.tell, as_written)[1]

    def run(self, plan: TrialPlan, place: Path, tell: OnProgress, as_written: Pace) -> tuple[Trial, Measured]:
        """A trial, with the device watched meanwhile."""
        with DeviceSampler() as sampler:
            trial = run_trial(plan, place, on_progress=tell)
        return trial, measured_in(trial, as_written, sampler.samples)

    def is_too_large(self, pace: Pace) -> bool:
        """Whether it takes more memory than the user allows."""
        most = self.request.max_memory_bytes
        return most is not None and pace.peak_bytes is not None and pace.peak_bytes > most
