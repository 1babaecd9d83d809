"""Most of the device's memory is not used.

A larger batch would use the device better, up to the knee of its throughput. Seen by what the allocator has
reserved at its peak, on a device that is not fully used. The batch size changes the training, so it is left
to you, and no gain is predicted: `flatout tune --allow batch-size` measures it.
"""

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen
from flatout.records.finding import Finding
from flatout.records.words import memory_size

_WELL_USED = 0.5


def look(seen: Seen) -> Finding | None:
    """Reserved over total, and an MFU with room above it."""
    memory, mfu = seen.profile.memory, seen.profile.mfu.of_rated
    if not memory.reserved_peak_bytes or not memory.device_total_bytes or mfu is None or mfu > _WELL_USED:
        return None
    share = memory.reserved_peak_bytes / memory.device_total_bytes
    if share > policy.MOSTLY_EMPTY:
        return None
    used = f"{memory_size(memory.reserved_peak_bytes)} of {memory_size(memory.device_total_bytes)}"
    return RULE.finding(
        f"{used} are used at the peak, at an MFU of {mfu:.0%}",
        "flatout tune --allow batch-size finds the knee of throughput",
    )


RULE = Rule("F502", "memory is mostly empty", look, ("batch-size",))
