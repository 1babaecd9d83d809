"""The host waits for the device, and the device then has nothing to do.

`.item()`, `print(loss)`, `.cpu()`, `nonzero` and `torch.cuda.synchronize()` make the host wait until
everything that was launched has run. While the device works that costs nothing; from its end to the next
launch it idles. Seen by the calls of the runtime in recorded steps, the idle time that follows each, and
the lines that call them. The gain is that idle time. It can be wrong where the next launch would have come
late anyway.
"""

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen, without
from flatout.records.finding import Finding, Place


def look(seen: Seen) -> Finding | None:
    """Idle time after waits over the policy's share."""
    trace, step = seen.profile.trace, seen.profile.step_ms
    share = seen.share("sync_stall")
    if trace is None or step is None or share < policy.STALLS:
        return None
    stalled = sum(one.stall_ms for one in trace.syncs) or 1.0
    scale = share * step.mean / stalled
    worst = [one for one in trace.syncs if one.stall_ms > 0][:3]
    told = "; ".join(
        f"{one.operator or one.call} {one.count:.0f} times a step, {one.stall_ms * scale:.2f} ms"
        for one in worst
    )
    speedup, arithmetic = without(min(0.9, share))
    return RULE.finding(
        f"the device idles {share:.0%} of a step after the host has waited for it: {told}",
        "read losses every hundred steps, or keep them on the device; "
        "use torch.where in place of masks that need nonzero()",
        speedup=speedup,
        arithmetic=arithmetic,
        where=tuple(place for one in worst if (place := _place(one.where)) is not None),
    )


def _place(where: str | None) -> Place | None:
    """`file:line in function`, as traces have it."""
    file, _, rest = (where or "").rpartition(":")
    line, _, function = rest.partition(" in ")
    return Place(file=file, line=int(line), function=function) if file and line.isdigit() else None


RULE = Rule("F204", "the host waits for the device", look, needs_only_a_trace=True)
