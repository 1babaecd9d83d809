"""Every step leaves memory behind.

Most often a list of losses that still hold their graphs (`losses.append(loss)`), or outputs kept for a
metric. Seen by the slope of what is allocated at step boundaries after the first third of the steps, where
it rises nearly every time. It can be wrong for a cache that is still filling up; `flatout profile --seconds
120` tells.
"""

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen
from flatout.records.finding import Finding
from flatout.records.words import memory_size


def look(seen: Seen) -> Finding | None:
    """A slope over the policy's bytes."""
    memory = seen.profile.memory
    slope = memory.growth_bytes_per_step
    if slope is None or slope < policy.LEAK_BYTES:
        return None
    total, peak = memory.device_total_bytes, memory.reserved_peak_bytes
    left = f"; full after {(total - peak) / slope:,.0f} steps" if total and peak and total > peak else ""
    return RULE.finding(
        f"each step leaves {memory_size(round(slope))} behind{left}",
        "keep loss.item() or loss.detach(), not loss; look for lists that grow",
    )


RULE = Rule("F505", "memory that grows", look)
