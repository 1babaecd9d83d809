"""The job is slower than it was in an earlier run.

Seen by the medians of both runs, whose intervals must lie apart, on the same kind of device (`flatout
profile --against RUN`). The part of the step that has grown most is named. It can be wrong where the
machine is shared or hotter than it was: clocks of both runs are shown.
"""

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen
from flatout.records.finding import Finding


def look(seen: Seen) -> Finding | None:
    """Slower beyond both intervals."""
    now, before = seen.profile.step_ms, seen.earlier.step_ms if seen.earlier is not None else None
    if seen.earlier is None or now is None or before is None:
        return None
    if seen.earlier.device_name != seen.profile.device_name:
        return None
    ratio = now.p50 / before.p50
    if ratio < policy.REGRESSION or now.low <= before.high:
        return None
    grown = {one.part: one.ms for one in seen.profile.waterfall}
    for one in seen.earlier.waterfall:
        grown[one.part] = grown.get(one.part, 0.0) - one.ms
    most = max(grown, key=lambda part: grown[part], default="")
    told = f", most of it in {most} (+{grown[most]:.2f} ms)" if most and grown[most] > 0 else ""
    clocks = [one.device_use.clock_compute_hz for one in (seen.earlier, seen.profile)]
    ran = f"; clocks {clocks[0] // 10**6} and {clocks[1] // 10**6} MHz" if clocks[0] and clocks[1] else ""
    return RULE.finding(
        f"a step takes {now.p50:.2f} ms, and took {before.p50:.2f} ms in {seen.earlier.run}{told}{ran}",
        "what changed since: git log, versions (flatout report shows both runs), the machine",
        speedup=ratio,
        arithmetic=f"{now.p50:.2f} / {before.p50:.2f} = {ratio:.2f}",
    )


RULE = Rule("F801", "slower than it was", look)
