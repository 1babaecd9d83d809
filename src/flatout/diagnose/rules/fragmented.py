"""Much memory is reserved that tensors cannot use.

The allocator keeps blocks of the sizes that were asked for; where sizes keep changing, free blocks are too
small for what comes next, and more is reserved. Seen by what is reserved against what is allocated, at
their peaks. It can be wrong where another phase of the job, an evaluation, needed the rest for a moment.
"""

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen
from flatout.records.finding import Finding
from flatout.records.words import memory_size


def look(seen: Seen) -> Finding | None:
    """Reserved over allocated, as a share of the device."""
    memory = seen.profile.memory
    reserved, allocated = memory.reserved_peak_bytes, memory.allocated_peak_bytes
    if reserved is None or allocated is None or not memory.device_total_bytes:
        return None
    share = (reserved - allocated) / memory.device_total_bytes
    if share < policy.FRAGMENTED:
        return None
    return RULE.finding(
        f"{memory_size(reserved - allocated)} are reserved beyond the {memory_size(allocated)} in use, "
        f"{share:.0%} of the device",
        "PYTORCH_ALLOC_CONF=expandable_segments:True, and fewer different shapes",
    )


RULE = Rule("F504", "fragmented memory", look, ("allocator",))
