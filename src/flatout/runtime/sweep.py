"""`profile --loader`: tries DataLoader settings in the job itself, within what CPU and memory allow.

Each setting is a trial of the whole job: a loader that is fast alone may starve the training loop of cores.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flatout.analyze.steps import NS_PER_MS, read_ranks, read_workers
from flatout.analyze.window import window_of
from flatout.hardware.host import cores_allowed, read_host
from flatout.records.machine import Host
from flatout.records.profile import LoaderSweep, LoaderUse, Profile, SweepRow
from flatout.records.trial import Trial
from flatout.runtime.profiling import TRIALS_FOLDER, ProfileRequest
from flatout.runtime.progress import StopRule
from flatout.runtime.trial import OnProgress, TrialPlan, run_trial

# A setting must be better by this much to be worth a change.
_WORTH = 0.03
# Below this share of the step, waiting for data cannot be what is slow.
_NOTHING_TO_WIN = 0.01
_MEMORY_SHARE = 0.5
# With so many cores, workers leave some to the training loop.
_MANY_CORES = 8
RunTrial = Callable[[TrialPlan, Path, OnProgress], Trial]
_RULE = StopRule(precision=0.03, fewest_steps=20, fewest_seconds=2.0, most_seconds=20.0)


def _run(plan: TrialPlan, place: Path, on_progress: OnProgress) -> Trial:
    return run_trial(plan, place, on_progress=on_progress)


def sweep_loader(
    request: ProfileRequest,
    profile: Profile,
    folder: Path,
    on_progress: OnProgress,
    counts: Sequence[int] | None = None,
    run: RunTrial = _run,
) -> Profile:
    """The profile with a sweep of its training loader's settings: every number of workers that fits.

    With `counts`, those alone, pinned at once, and held against the profile itself: for whoever has no time.
    """
    loader = max(profile.loaders, key=lambda one: one.batches, default=None)
    if loader is None:
        return _with(profile, (), None, "the script uses no DataLoader")
    if profile.step_ms is None or profile.samples_per_s is None:
        return _with(profile, (), None, "the job has no steady step time to compare with")
    sweep = _Sweep(request, profile, loader, folder, on_progress, run)
    return sweep.run() if counts is None else sweep.run_few(counts)


class _Sweep:
    def __init__(
        self,
        request: ProfileRequest,
        profile: Profile,
        loader: LoaderUse,
        folder: Path,
        on_progress: OnProgress,
        run: RunTrial,
    ) -> None:
        self._run_trial = run
        self._request = request
        self._profile = profile
        self._loader = loader
        self._folder = folder
        self._on_progress = on_progress
        self._host = read_host(places=())
        self.counts = worker_counts(self._host)
        self._own_bytes = 0
        self._rows: list[SweepRow] = []
        self._order: dict[str, Any] = {"seed": request.seed, **request.order}

    def run(self) -> Profile:
        """Every number of workers, then pinning on top of the best."""
        # Measured again like all others: the profile ran at another time, and longer.
        baseline = self._try({})
        if baseline.outcome != "measured":
            return _with(self._profile, self._rows, None, f"the job could not be repeated: {baseline.reason}")
        self._try_workers(self.counts, {})
        if self._could_pin():
            best = self._best(baseline)
            self._try({**(best.settings if best is not None else {}), "pin_memory": True})
        return self._conclusion(baseline)

    def run_few(self, counts: Sequence[int]) -> Profile:
        """These numbers of workers."""
        trial = self._profile.trial
        baseline = self._row({}, Path(trial.folder), trial)
        self._rows.append(baseline)
        self._try_workers(counts, {"pin_memory": True} if self._could_pin() else {})
        return self._conclusion(baseline)

    def _could_pin(self) -> bool:
        on_gpu = bool(self._profile.device) and str(self._profile.device).startswith("cuda")
        return on_gpu and not self._loader.settings.get("pin_memory")

    def _try_workers(self, counts: Sequence[int], more: dict[str, Any]) -> None:
        current = self._loader.settings.get("num_workers") or 0
        for workers in counts:
            if workers == current and not more:
                continue
            if not self._fits(workers):
                reason = f"{workers} workers would take more than half of the free memory"
                self._rows.append(
                    SweepRow(settings={"num_workers": workers}, outcome="refused", reason=reason)
                )
                break
            row = self._try({"num_workers": workers, "persistent_workers": workers > 0, **more})
            if row.outcome == "refused":
                break
            if self._waits_for_nothing(row) and workers > current:
                break

    def _conclusion(self, baseline: SweepRow) -> Profile:
        profile, best = self._profile, self._best(baseline)
        if best is None:
            return _with(
                profile, self._rows, None, "no setting is more than 3 % faster than the script's own"
            )
        gain = (best.samples_per_s or 0) / (baseline.samples_per_s or 1) - 1
        before = "with the settings before" if self._order.get("loader") else "as written"
        reason = f"{gain:.0%} more samples a second than {before}"
        return _with(profile, self._rows, best.settings, reason)

    def _try(self, settings: dict[str, Any]) -> SweepRow:
        # On top of settings that were chosen before.
        settings = {**self._order.get("loader", {}), **settings}
        number = len(list((self._folder / TRIALS_FOLDER).iterdir())) + 1
        words = ", ".join(f"{name}={value}" for name, value in settings.items()) or "as written"
        place = self._folder / TRIALS_FOLDER / f"{number}-loader"
        request = self._request
        plan = TrialPlan(
            name=words,
            command=request.command,
            stop=dataclasses.replace(_RULE, most_seconds=min(_RULE.most_seconds, request.seconds)),
            order={**self._order, "loader": settings},
            startup_s=request.startup_s,
            silence_s=request.silence_s,
            environment=request.environment,
        )
        trial = self._run_trial(plan, place, self._on_progress)
        row = self._row(settings, place, trial)
        self._rows.append(row)
        return row

    def _row(self, settings: dict[str, Any], place: Path, trial: Trial) -> SweepRow:
        ranks = read_ranks(place)
        if not trial.went_well or trial.updates < 3 or not ranks:
            return SweepRow(settings=settings, outcome="failed", reason=trial.ending)
        lead = ranks[0]
        # What another loader refuses, such as an evaluation's, does not end the sweep of this one.
        told = [
            one
            for one in lead.about.get("loader_overrides", ())
            if f".{self._loader.data_set}".endswith(f".{one['data_set']}")
        ]
        refused = [one["reason"] for one in told if not one["applied"]]
        if settings and refused:
            return SweepRow(settings=settings, outcome="refused", reason=refused[0])
        window = window_of(lead)
        step_ms = sum(window.times) / len(window.times)
        samples = sum(one["samples"] for one in window.watched) / len(window.watched) * len(ranks)
        waits = [one["loader_ns"] / NS_PER_MS for one in window.watched]
        workers = read_workers(place, lead.pid)
        self._own_bytes = max([self._own_bytes, *(worker.get("own_bytes") or 0 for worker in workers)])
        return SweepRow(
            settings=_lasting(settings, told),
            outcome="measured",
            samples_per_s=samples / step_ms * 1000,
            step_ms=step_ms,
            wait_ms=sum(waits) / len(waits),
            host_bytes=sum(worker.get("own_bytes") or 0 for worker in workers) or None,
            unknown={} if workers else {"host_bytes": "no worker reported its memory"},
        )

    def _fits(self, workers: int) -> bool:
        host = self._host
        free = [host.memory_available_bytes] if host.memory_available_bytes is not None else []
        if host.memory_limit_bytes is not None:
            free.append(host.memory_limit_bytes - (host.memory_limit_used_bytes or 0))
        return not free or workers * self._own_bytes <= _MEMORY_SHARE * min(free)

    def _waits_for_nothing(self, row: SweepRow) -> bool:
        return bool(row.step_ms) and (row.wait_ms or 0) < _NOTHING_TO_WIN * (row.step_ms or 1)

    def _best(self, baseline: SweepRow) -> SweepRow | None:
        measured = [row for row in self._rows if row.outcome == "measured" and row.settings]
        best = max(measured, key=lambda row: row.samples_per_s or 0, default=None)
        worth = (baseline.samples_per_s or 0) * (1 + _WORTH)
        return best if best is not None and (best.samples_per_s or 0) > worth else None


def workers_needed(load_ms: float, step_ms: float, host: Host, *, on_gpu: bool = False) -> list[int]:
    """Counts worth trying where a batch takes `load_ms` to make and `step_ms` to train on."""
    cores = cores_allowed(host)
    # The loop itself, and the thread that pins, need some too.
    most = cores - cores // 8 if cores >= _MANY_CORES else cores
    enough = min(most, max(1, math.ceil(1.2 * load_ms / max(step_ms, 0.01))))
    counts = {enough, min(most, 2 * enough)}
    if enough == most and not on_gpu:  # they would take the cores on which the job computes
        counts.add(max(1, cores // 2))
    return sorted(counts)


def _lasting(settings: dict[str, Any], told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Without workers that live on, unless passes began with a data set that was still the same.

    Where passes are so long that none was seen, starting workers anew costs nothing that would count.
    """
    kept, anew = (
        sum(one.get(f"passes_with_{which}_workers", 0) for one in told) for which in ("kept", "new")
    )
    if settings.get("persistent_workers") and (anew or not kept):
        return {name: value for name, value in settings.items() if name != "persistent_workers"}
    return settings


def worker_counts(host: Host) -> list[int]:
    """0, 1, 2, 4, ... up to the cores that this process may use, that number included."""
    cores = cores_allowed(host)
    counts = [0, 1]
    while counts[-1] * 2 <= cores:
        counts.append(counts[-1] * 2)
    if counts[-1] < cores:
        counts.append(cores)
    return counts


def _with(profile: Profile, rows: Any, best: dict[str, Any] | None, reason: str) -> Profile:
    return dataclasses.replace(profile, loader_sweep=LoaderSweep(rows=tuple(rows), best=best, reason=reason))
