"""The host cannot launch kernels as fast as the GPU runs them.

The GPU idles between many small kernels. Seen by the gaps between kernels in recorded steps; without a
recording, by a device that is idle for a good part of the time while the host is busy with forward, backward
and optimizer, and the loop waits neither for data nor for the device.
The gain is what is left when CUDA graphs take three quarters of the idle time away. It can be wrong where
Python code between the kernels does work of its own: graphs do not take that away.
"""

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen, without
from flatout.records.finding import Finding

_HOST = ("forward", "backward", "optimizer")


def look(seen: Seen) -> Finding | None:
    """Idle, and not for want of data."""
    idle = _idle(seen)
    if not seen.job.on_gpu or idle is None:
        return None
    host = sum(seen.job.host_shares.get(part, 0.0) for part in _HOST)
    if idle < policy.IDLE or (seen.job.host_shares and host < policy.LAUNCHES):
        return None
    speedup, arithmetic = without(idle, 4.0)
    launches = f", while the host launches for {host:.0%} of it" if seen.job.host_shares else ""
    return RULE.finding(
        f"no kernel runs {idle:.0%} of the time{launches}",
        'torch.compile(model, mode="reduce-overhead"), or a larger batch: flatout tune tries both',
        speedup=speedup,
        arithmetic=arithmetic,
        where=seen.place("root_call"),
    )


def _idle(seen: Seen) -> float | None:
    """The share of the time between launches; a recording says it, counters only what they leave over."""
    trace, busy = seen.profile.trace, seen.job.busy_share
    if trace is not None and trace.kernels and trace.busy_share is not None:
        return seen.share("launch_gap")
    return (
        max(0.0, 1.0 - busy - seen.share("input_wait") - seen.share("sync_stall"))
        if busy is not None
        else None
    )


RULE = Rule(
    "F201", "launches hold the job up", look, ("compile",), silent_beside=("F205",), needs_only_a_trace=True
)
