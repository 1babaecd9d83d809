"""The allocator had to flush its cache to find memory.

Each time the device is synchronized and memory is handed back and fetched again: milliseconds to seconds.
Seen by the allocator's own counter. Segments that grow (`expandable_segments`) mostly end it, a smaller
batch always.
"""

from flatout.diagnose.rule import Rule, Seen
from flatout.records.finding import Finding


def look(seen: Seen) -> Finding | None:
    """Any retry."""
    retries = seen.profile.memory.allocation_retries
    if not retries:
        return None
    return RULE.finding(
        f"the allocator flushed its cache {retries} times",
        "PYTORCH_ALLOC_CONF=expandable_segments:True",
        severity="medium",
    )


RULE = Rule("F503", "the allocator starts over", look, ("allocator",))
