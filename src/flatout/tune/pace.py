"""How fast a job goes, as written and under levers."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from flatout.analyze.device_use import device_use
from flatout.analyze.profile import Peaks, build_profile
from flatout.analyze.steps import read_ranks
from flatout.analyze.window import window_of
from flatout.records.device import DeviceSample
from flatout.records.profile import Profile
from flatout.records.trial import Trial
from flatout.records.tuning import Pace


def pace_of(profile: Profile) -> Pace:
    """How the job went in a profile that has a step time."""
    assert profile.step_ms is not None
    return Pace(
        # The mean, as in samples a second: where a loader stalls every few steps, the middle one hides that.
        step_ms=profile.step_ms.mean,
        samples_per_s=profile.samples_per_s,
        mfu=profile.mfu.of_rated if profile.mfu.of_rated is not None else profile.mfu.of_measured,
        gpu_busy_share=profile.device_use.kernel_running_share,
        peak_bytes=profile.memory.reserved_peak_bytes or profile.memory.host_peak_bytes,
        unknown={}
        if (profile.device or "").startswith("cuda")
        else {"gpu_busy_share": "the job does not train on a GPU"},
    )


@dataclasses.dataclass(frozen=True)
class Measured:
    """One run of the job under some levers, in a process of its own.

    Without a pace it made too few steps, or did not come to a good end, however many it made until then.
    """

    pace: Pace | None
    profile: Profile | None
    # How it ended, in words, where there is no pace.
    ending: str
    # The script came to its own end before there was anything to measure.
    too_short: bool = False


def measured_in(trial: Trial, baseline: Pace, samples: Sequence[DeviceSample]) -> Measured:
    """How the job went in a trial. Operations are the baseline's, whatever a lever does to them."""
    folder = Path(trial.folder)
    ranks = read_ranks(folder)
    if not trial.went_well or not ranks or len(ranks[0].steps) < 3:
        return Measured(None, None, trial.ending, too_short=trial.outcome == "ended")
    use = device_use(ranks[0], window_of(ranks[0]).chosen, samples)
    profile = build_profile("", trial, folder, Peaks(), use)
    if profile.step_ms is None:
        return Measured(None, None, trial.ending)
    pace = pace_of(profile)
    if baseline.mfu is not None:
        known = {name: why for name, why in pace.unknown.items() if name != "mfu"}
        pace = dataclasses.replace(pace, mfu=baseline.mfu * gain(baseline, pace), unknown=known)
    return Measured(pace, profile, trial.ending)


def gain(before: Pace, after: Pace) -> float:
    """How many times faster, in samples where both are known."""
    if before.samples_per_s and after.samples_per_s:
        return after.samples_per_s / before.samples_per_s
    return before.step_ms / after.step_ms


def fastest(*paces: Pace) -> Pace:
    """The one that was disturbed least."""
    return max(paces, key=lambda pace: gain(paces[0], pace))


def faster(pace: Pace, speedup: float, like: Pace) -> Pace:
    """`pace` at so many times its speed; memory and busy share as in `like`."""
    return Pace(
        step_ms=pace.step_ms / speedup,
        samples_per_s=pace.samples_per_s * speedup if pace.samples_per_s is not None else None,
        mfu=pace.mfu * speedup if pace.mfu is not None else None,
        gpu_busy_share=like.gpu_busy_share,
        peak_bytes=like.peak_bytes,
    )


def input_wait(measured: Measured) -> float:
    """The share of a step in which the loop waited for data."""
    if measured.profile is None:
        return 0.0
    return sum(share.share for share in measured.profile.waterfall if share.part == "input_wait")
