"""One rank is slower than the others, and all wait for it.

Seen by the ranks' own step times, without what they wait for each other, where there are at least two. The
gain is that of the slowest becoming like the median. It can be wrong for pipelines, where ranks do different
work.
"""

import statistics

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen
from flatout.records.finding import Finding


def look(seen: Seen) -> Finding | None:
    """The slowest over the median."""
    times = {one.rank: one.step_ms for one in seen.profile.ranks if one.step_ms}
    if len(times) < 2:
        return None
    slowest = max(times, key=lambda rank: times[rank])
    middle = statistics.median(times.values())
    ratio = times[slowest] / middle
    if ratio < policy.STRAGGLER:
        return None
    return RULE.finding(
        f"rank {slowest} takes {times[slowest]:.1f} ms a step, the median rank {middle:.1f} ms",
        "flatout doctor on that machine; is its data, its card or its neighbour different?",
        speedup=ratio,
        arithmetic=f"{times[slowest]:.1f} / {middle:.1f} = {ratio:.2f}",
    )


RULE = Rule("F701", "one rank holds the others up", look)
