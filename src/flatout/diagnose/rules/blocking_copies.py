"""Batches are copied from pageable memory, which the host has to wait for.

A copy from pageable memory goes through a buffer of the driver's, at a third of the link's speed, and the
host waits for it; one from pinned memory with `non_blocking=True` runs beside the kernels. Seen by copies
that the trace calls pageable, and their share of the step. The gain is what is left when nearly all of it
is hidden. It can be wrong for a few copies of small numbers, which are bound by the launch.
"""

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen, without
from flatout.records.finding import Finding


def look(seen: Seen) -> Finding | None:
    """Pageable copies to the device over the policy's share."""
    trace, step = seen.profile.trace, seen.profile.step_ms
    if trace is None or step is None:
        return None
    taken = [one for one in trace.kernels if "HtoD" in one.name and "Pageable" in one.name]
    ms = sum(one.ms for one in taken)
    if ms < policy.COPIES * step.mean:
        return None
    speedup, arithmetic = without(min(0.9, ms / step.mean), 10.0)
    calls = sum(one.calls for one in taken)
    return RULE.finding(
        f"{ms:.2f} ms of a step are copies from pageable memory, {calls:.0f} of them",
        "DataLoader(..., pin_memory=True) and batch.to(device, non_blocking=True)",
        speedup=speedup,
        arithmetic=arithmetic,
        where=seen.lines("aten::_to_copy", "aten::copy"),
    )


RULE = Rule(
    "F107", "copies that the host waits for", look, ("loader", "device-prefetch"), needs_only_a_trace=True
)
