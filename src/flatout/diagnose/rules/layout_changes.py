"""Convolutions change the order of their data before and after.

cuDNN's fast kernels want channels last; given the usual order, they transpose. Seen by kernels that turn one
layout into the other in recorded steps. The gain is their time. It can be wrong where the transposing kernels
belong to the script's own `permute` calls.
"""

import re

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen, without
from flatout.records.finding import Finding

_TURNING = re.compile("nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw", re.IGNORECASE)


def look(seen: Seen) -> Finding | None:
    """Their share of the step."""
    trace, step = seen.profile.trace, seen.profile.step_ms
    if trace is None or step is None:
        return None
    ms = sum(one.ms for one in trace.kernels if _TURNING.search(one.name))
    if ms < policy.LAYOUT * step.mean:
        return None
    speedup, arithmetic = without(min(0.9, ms / step.mean))
    return RULE.finding(
        f"{ms:.2f} ms of a step turn images around for convolutions",
        "model.to(memory_format=torch.channels_last), and the images too",
        speedup=speedup,
        arithmetic=arithmetic,
        where=seen.place("root_call"),
    )


RULE = Rule("F308", "layout changes around convolutions", look, ("channels-last",), needs_only_a_trace=True)
