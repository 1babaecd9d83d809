"""The DataLoader's settings, each in a run of its own: they belong to its constructor."""

import dataclasses
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec

from flatout.hardware.host import read_host
from flatout.levers.catalogue import BY_ID
from flatout.levers.job import JobFacts
from flatout.records.plan import Choice
from flatout.records.profile import Profile
from flatout.records.trial import Trial
from flatout.records.tuning import LeverTrial
from flatout.runtime.sweep import sweep_loader, workers_needed
from flatout.runtime.trial import OnProgress, TrialPlan
from flatout.tune.conclusions import WORTH
from flatout.tune.limits import OUT_OF_TIME, Limits
from flatout.tune.measuring import Measurer
from flatout.tune.pace import Measured, input_wait, pace_of
from flatout.tune.request import order_of
from flatout.tune.search import Finder

# What notes how long something took, under a name.
Stage = Callable[[str], AbstractContextManager[None]]

# A loop that waits for data for less than this has a loader that keeps up.
_WAITS = 0.03
WAITS_LONG = 0.15
_CLEAR_GAIN = 1.1
# So much more than all of the wait for data is none of the loader's doing: the machine was busy before.
_TOO_GOOD = 1.25
_AS_FAST = "measured once more, the loader as it was is as fast: other work had slowed it down"
_RECKONED = "as many workers as a batch takes steps to make"
NOT_NEEDED = LeverTrial(
    lever="loader", safety="resampled", verdict="skipped", reason="the loop does not wait for data"
)


@dataclasses.dataclass(frozen=True)
class Loaded:
    """What became of the loader's settings; without a choice they stay."""

    trial: LeverTrial
    choice: Choice | None = None
    # The job under the choice, and whatever levers were on.
    measured: Measured | None = None


class LoaderStage:
    """Tries them, under whatever levers are on."""

    def __init__(
        self, measurer: Measurer, limits: Limits, folder: Path, baseline: Profile, stage: Stage
    ) -> None:
        self._measurer = measurer
        self._limits = limits
        self._folder = folder
        self._baseline = baseline
        self._as_written = pace_of(baseline)
        self._stage = stage

    def tune(
        self,
        job: JobFacts,
        profile: Profile,
        levers: tuple[Choice, ...],
        *,
        computing_ms: float | None = None,
    ) -> Loaded:
        """Settings of the DataLoader, each in a run of its own, under these levers.

        The profile may be one without the levers: then `computing_ms` says what a step takes with them, apart
        from the wait for data.
        """
        kind = BY_ID["loader"]
        reason = self._refusal(job)
        if reason:
            return Loaded(LeverTrial(lever="loader", safety=kind.safety, verdict="skipped", reason=reason))
        predicted = kind.predict(job, {})
        request = dataclasses.replace(
            self._measurer.request.job,
            seed=self._measurer.request.seed,
            seconds=self._measurer.rule.most_seconds,
            order=order_of(levers),
        )
        runs: dict[str, Measured] = {}

        def run(plan: TrialPlan, place: Path, tell: OnProgress) -> Trial:
            trial, runs[_key(plan.order["loader"])] = self._measurer.run(plan, place, tell, self._as_written)
            return trial

        counts = _worker_counts(profile, computing_ms)
        swept = sweep_loader(request, profile, self._folder, self._measurer.tell, counts, run).loader_sweep
        assert swept is not None
        trial = LeverTrial(
            lever="loader",
            safety=kind.safety,
            verdict="rejected",
            reason=swept.reason,
            predicted_speedup=predicted,
            on_top_of=tuple(one.words() for one in levers),
        )
        if swept.best is None:
            return Loaded(trial)
        rates = [
            next((row.samples_per_s for row in swept.rows if row.settings == settings), None)
            for settings in ({}, swept.best)
        ]
        measured = None
        if rates[0] and rates[1] and computing_ms is None:
            rates[0] = self._looked_at_again(rates[0], rates[1], predicted, levers)
            measured = rates[1] / rates[0]
            if measured < 1 + WORTH:
                return Loaded(msgspec.structs.replace(trial, reason=_AS_FAST, measured_speedup=measured))
        settings = {name: value for name, value in swept.best.items() if value is not None}
        choice = Choice(
            id="loader",
            settings=settings,
            predicted_speedup=predicted,
            measured_speedup=measured,
            reason="the loop waited for data",
        )
        kept = msgspec.structs.replace(trial, verdict="kept", settings=settings, measured_speedup=measured)
        # The best of several short runs is better than it is: what gives little is measured once more.
        is_clear = (rates[1] or 0.0) >= _CLEAR_GAIN * (rates[0] or 0.0)
        return Loaded(kept, choice, runs.get(_key(swept.best)) if is_clear else None)

    def _looked_at_again(
        self, before: float, after: float, predicted: float, levers: tuple[Choice, ...]
    ) -> float:
        """The rate without other settings; measured again where they gave more than the loop had waited."""
        if after < _TOO_GOOD * predicted * before:
            return before
        now = self._measurer.measure("the loader as it was, once more", levers, self._as_written).pace
        return max(before, now.samples_per_s or 0.0) if now is not None else before

    def reckon(self, job: JobFacts) -> Loaded:
        """Workers for a loader that has none, as many as a batch and a step take; nothing is measured."""
        counts = _worker_counts(self._baseline, None)
        has_workers = any(one.get("num_workers") for one in job.loaders)
        if self._refusal(job) or has_workers or not counts:
            return Loaded(NOT_NEEDED)
        settings = {"num_workers": counts[-1], "persistent_workers": True}
        predicted = BY_ID["loader"].predict(job, {})
        choice = Choice(id="loader", settings=settings, predicted_speedup=predicted, reason=_RECKONED)
        kept = msgspec.structs.replace(
            NOT_NEEDED, verdict="kept", reason=_RECKONED, settings=settings, predicted_speedup=predicted
        )
        return Loaded(kept, choice)

    def _refusal(self, job: JobFacts) -> str:
        if self._measurer.request.goal == "memory":
            return "workers serve speed, and take memory"
        return self._limits.refusal("loader", job)

    def on_top(
        self, job: JobFacts, finder: Finder, loaded: Loaded, *, later_on: bool
    ) -> tuple[Loaded, tuple[Choice, ...], Measured | None]:
        """Settings once the levers are known: what kept up with a slow job may not keep up with a fast one.

        What became of the settings, the plan with them, and how it went where the last run was of just that.
        `later_on`: nothing was measured of the settings before.
        """
        best = finder.best
        if later_on and (not best or job.host_shares.get("input_wait", 0.0) > WAITS_LONG):
            # Under levers it waits more than as written: that need not be measured.
            computing_ms = finder.ladder[-1].step_ms if finder.ladder else None
            with self._stage("loader"):
                later = self.tune(job, self._baseline, best, computing_ms=computing_ms)
            if later.choice is None and loaded.choice is not None:
                best = _without_workers(best)
            return later, _with_loader(best, later.choice), later.measured
        if not later_on and loaded.choice is not None:
            return loaded, (loaded.choice, *best), loaded.measured if not best else None
        if not best:
            return loaded, (), None
        with self._stage("confirming"):
            measured = self._measurer.measure("the plan", best, self._as_written)
        was_tried = loaded.trial.verdict == "rejected"
        with self._stage("loader"):
            later = self._tune_if_it_waits(job, measured, best, in_vain=was_tried)
        if later.choice is None:
            return loaded if was_tried and later.trial.verdict == "skipped" else later, best, measured
        return later, _with_loader(best, later.choice), later.measured

    def _tune_if_it_waits(
        self, job: JobFacts, measured: Measured, levers: tuple[Choice, ...], *, in_vain: bool
    ) -> Loaded:
        """Even where the search has left no time: while the loop waits long, no lever gives more.

        But not where no setting helped the job as written (`in_vain`).
        """
        profile = measured.profile
        waits = input_wait(measured)
        if profile is None or waits < _WAITS:
            return Loaded(NOT_NEEDED)
        if time.monotonic() > self._limits.deadline and (in_vain or waits < WAITS_LONG):
            return Loaded(msgspec.structs.replace(NOT_NEEDED, reason=OUT_OF_TIME))
        facts = dataclasses.replace(job, host_shares={**job.host_shares, "input_wait": waits})
        return self.tune(facts, profile, levers)


def _with_loader(found: tuple[Choice, ...], loader: Choice | None) -> tuple[Choice, ...]:
    return found if loader is None else (loader, *(one for one in found if one.id != "loader"))


def _without_workers(found: tuple[Choice, ...]) -> tuple[Choice, ...]:
    """Without what needs them, where none are worth having after all."""
    return tuple(one for one in found if one.id != "device-prefetch")


def can_repeat_batches(job: JobFacts) -> bool:
    """Whether levers can take turns with batches that were made before.

    On a CPU the workers' work is part of what a step costs; batches of several shapes are not like the first.
    """
    one_shape = job.habit("input_shapes", 1) == 1
    return bool(job.on_gpu and job.loaders and one_shape and job.habit("not_repeatable") == "")


def _key(settings: dict[str, Any]) -> str:
    """Of a run: whether its workers may live on shows in the run itself."""
    return json.dumps({**settings, "persistent_workers": None}, sort_keys=True)


def with_workers(job: JobFacts, loader: Choice | None) -> JobFacts:
    """The facts as they are with the loader's new settings."""
    if loader is None:
        return job
    return dataclasses.replace(
        job, loaders=tuple({**settings, **loader.settings} for settings in job.loaders)
    )


def _worker_counts(profile: Profile, computing_ms: float | None) -> list[int] | None:
    """From what a batch takes to make, and a step without the wait for it; None where that is not known."""
    loader = max(profile.loaders, key=lambda one: one.batches, default=None)
    if loader is None or loader.load_ms is None or profile.step_ms is None:
        return None
    made_ms = loader.load_ms + (loader.collate_ms or 0.0)
    batches = max(1.0, profile.micro_batches)
    rest_ms = max(0.05 * profile.step_ms.mean, profile.step_ms.mean - loader.wait_ms * batches)
    on_gpu = (profile.device or "").startswith("cuda")
    return workers_needed(made_ms * batches, computing_ms or rest_ms, read_host(places=()), on_gpu=on_gpu)
