"""One rank is slower than the others, and all wait for it.

Seen by the parts of each rank's step in which nobody waits for anybody, where there are at least two ranks:
their step times are all alike, since they end together. In traces of several ranks these are all but
communication that nothing hides. The gain is that of the slowest taking as long as the
others. It can be wrong for pipelines, where ranks do different work, and where ranks take turns to be slow.
"""

from flatout.diagnose.rule import Rule, Seen
from flatout.records.finding import Finding


def look(seen: Seen) -> Finding | None:
    """What it does alone, beyond what the others do."""
    found = seen.straggler()
    if found is None:
        return None
    behind_ms = found.ms - found.others_ms
    return RULE.finding(
        found.words(),
        "flatout doctor on that machine; is its data, its card or its neighbour different?",
        speedup=found.speedup,
        arithmetic=f"{found.step_ms:.1f} / ({found.step_ms:.1f} - {behind_ms:.1f}) = {found.speedup:.2f}",
    )


RULE = Rule("F701", "one rank holds the others up", look, needs_only_a_trace=True)
