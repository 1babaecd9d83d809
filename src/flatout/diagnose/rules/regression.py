"""The job is slower than it was in an earlier run.

Seen by the medians of both runs, whose intervals must lie apart, on the same kind of device (`flatout
profile --against RUN`); where a step of one has more samples than a step of the other, by the time of a
sample. The part of the step that has grown most is named. It can be wrong where the machine is shared or
hotter than it was: clocks of both runs are shown.
"""

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen
from flatout.records.finding import Finding
from flatout.records.profile import Profile


def look(seen: Seen) -> Finding | None:
    """Slower beyond both intervals."""
    if seen.earlier is None:
        return None
    now, before = seen.profile.step_ms, seen.earlier.step_ms
    if now is None or before is None or not_comparable(seen.profile, seen.earlier):
        return None
    more = _times_the_samples(seen.profile, seen.earlier)
    ratio = now.p50 / before.p50 / more
    if ratio < policy.REGRESSION or now.low <= before.high * more:
        return None
    return RULE.finding(
        _evidence(seen.profile, seen.earlier, more),
        "what changed since: git log, versions (flatout report shows both runs), the machine",
        speedup=ratio,
        arithmetic=f"{now.p50:.2f} / {before.p50:.2f}{f' / {more:.3g}' if more != 1 else ''} = {ratio:.2f}",
    )


def not_comparable(now: Profile, before: Profile) -> str:
    """Why one says nothing of how fast the other should be; empty where it does."""
    if now.device_name != before.device_name:
        return (
            f"it ran on {before.device_name or 'an unknown device'}, this on {now.device_name or 'another'}"
        )
    if now.step_ms is None or before.step_ms is None:
        return f"{'this run' if now.step_ms is None else 'it'} made too few steps for a step time"
    return ""


def _times_the_samples(now: Profile, before: Profile) -> float:
    """1 where either is not known: steps are held against steps then."""
    if not now.samples_per_step or not before.samples_per_step:
        return 1.0
    return now.samples_per_step / before.samples_per_step


def _evidence(now: Profile, before: Profile, more: float) -> str:
    assert now.step_ms is not None
    assert before.step_ms is not None
    grown = {one.part: one.ms for one in now.waterfall}
    for one in before.waterfall:
        grown[one.part] = grown.get(one.part, 0.0) - one.ms * more
    most = max(grown, key=lambda part: grown[part], default="")
    told = f", most of it in {most} (+{grown[most]:.2f} ms)" if most and grown[most] > 0 else ""
    sizes = ""
    if more != 1:
        sizes = f"{now.samples_per_step:.4g} samples in place of {before.samples_per_step:.4g}: "
    clocks = [one.device_use.clock_compute_hz for one in (before, now)]
    ran = f"; clocks {clocks[0] // 10**6} and {clocks[1] // 10**6} MHz" if clocks[0] and clocks[1] else ""
    should = f", which is {before.step_ms.p50 * more:.2f} ms for as many samples" if more != 1 else ""
    return (
        f"{sizes}a step takes {now.step_ms.p50:.2f} ms, and took {before.step_ms.p50:.2f} ms "
        f"in {before.run}{should}{told}{ran}"
    )


RULE = Rule("F801", "slower than it was", look)
