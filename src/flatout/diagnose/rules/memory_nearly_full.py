"""The device's memory is nearly full.

A longer batch, or an evaluation beside the training, may not fit. Seen by what the allocator has reserved at
its peak. Nothing is gained in speed by freeing it.
"""

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen
from flatout.records.finding import Finding
from flatout.records.words import memory_size


def look(seen: Seen) -> Finding | None:
    """Reserved over total."""
    memory = seen.profile.memory
    if not memory.reserved_peak_bytes or not memory.device_total_bytes:
        return None
    share = memory.reserved_peak_bytes / memory.device_total_bytes
    if share < policy.NEARLY_FULL:
        return None
    held = f"{memory_size(memory.reserved_peak_bytes)} of {memory_size(memory.device_total_bytes)}"
    return RULE.finding(
        f"{held} are reserved at the peak, {share:.0%}",
        "flatout tune --goal memory looks for a lower peak",
        severity="medium",
    )


RULE = Rule("F501", "memory is nearly full", look)
