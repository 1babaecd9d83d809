"""How fast a job goes, as written and under levers."""

import dataclasses
from pathlib import Path

from flatout.analyze.profile import Peaks, build_profile
from flatout.analyze.steps import read_ranks
from flatout.records.profile import Profile
from flatout.records.trial import Trial
from flatout.records.tuning import Pace


def pace_of(profile: Profile) -> Pace:
    """How the job went in a profile that has a step time."""
    assert profile.step_ms is not None
    return Pace(
        step_ms=profile.step_ms.p50,
        samples_per_s=profile.samples_per_s,
        mfu=profile.mfu.of_rated if profile.mfu.of_rated is not None else profile.mfu.of_measured,
        gpu_busy_share=profile.device_use.kernel_running_share,
        peak_bytes=profile.memory.reserved_peak_bytes or profile.memory.host_peak_bytes,
    )


def pace_in(trial: Trial, baseline: Pace) -> Pace | None:
    """How the job went in a trial, or None where it made too few steps.

    The model's operations are those of the baseline, whatever a lever does to them.
    """
    folder = Path(trial.folder)
    ranks = read_ranks(folder)
    if not ranks or len(ranks[0].steps) < 3:
        return None
    profile = build_profile("", trial, folder, Peaks())
    if profile.step_ms is None:
        return None
    pace = dataclasses.replace(pace_of(profile), unknown={})
    faster = gain(baseline, pace)
    return dataclasses.replace(pace, mfu=baseline.mfu * faster if baseline.mfu is not None else None)


def gain(before: Pace, after: Pace) -> float:
    """How many times faster, in samples where both are known."""
    if before.samples_per_s and after.samples_per_s:
        return after.samples_per_s / before.samples_per_s
    return before.step_ms / after.step_ms


def faster(pace: Pace, speedup: float, like: Pace) -> Pace:
    """`pace` at so many times its speed; memory and busy share as in `like`."""
    return Pace(
        step_ms=pace.step_ms / speedup,
        samples_per_s=pace.samples_per_s * speedup if pace.samples_per_s is not None else None,
        mfu=pace.mfu * speedup if pace.mfu is not None else None,
        gpu_busy_share=like.gpu_busy_share,
        peak_bytes=like.peak_bytes,
    )
