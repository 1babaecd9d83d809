"""Every step leaves memory behind.

Most often a list of losses that still hold their graphs (`losses.append(loss)`), or outputs kept for a
metric. Seen by the slope of what is allocated at step boundaries after the first third of the steps (the
median over all pairs, with its 95 % interval), where it is above zero beyond doubt and until the end. Who
holds the tensors that the last steps left behind is searched for among all that Python knows, and the line
that adds to it is read from the source: a holder is named only where it holds what steps made and later ones
left alone. It can be wrong for a cache that is still filling up; `flatout profile --seconds 120` tells. From
Python, `flatout.MemoryTracker` tells the same of a loop.
"""

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen
from flatout.records.finding import Finding
from flatout.records.memory_growth import size_in_words

_FIX = "keep loss.item() or loss.detach(), not loss; look for lists that grow"


def look(seen: Seen) -> Finding | None:
    """A slope over the policy's bytes."""
    memory = seen.profile.memory
    slope = memory.growth_bytes_per_step
    low, high = memory.growth_low_bytes_per_step, memory.growth_high_bytes_per_step
    if slope is None or slope < policy.LEAK_BYTES:
        return None
    between = f" ({size_in_words(low)} to {size_in_words(high)})" if low and high else ""
    total, peak = memory.device_total_bytes, memory.reserved_peak_bytes
    left = f"; full after {(total - peak) / slope:,.0f} steps" if total and peak and total > peak else ""
    holder = memory.holders[0] if memory.holders else None
    held = f"; {holder}" if holder is not None else ""
    return RULE.finding(
        f"each step leaves {size_in_words(slope)} behind{between}{left}{held}",
        holder.fix if holder is not None else _FIX,
        where=tuple(one.where for one in memory.holders if one.where is not None),
        severity="high",
    )


RULE = Rule("F505", "memory that grows", look, harms=True)
