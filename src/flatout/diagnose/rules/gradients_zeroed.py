"""Gradients are filled with zeros in place of being dropped.

That writes every gradient once, and the backward pass then reads it to add to it. Seen by gradients that are
there and zero when a backward pass begins. It costs three trips over the gradients. It can be wrong where the
script reads them in between.
"""

from flatout.diagnose.rule import Rule, Seen, without
from flatout.records.finding import Finding
from flatout.records.words import memory_size


def look(seen: Seen) -> Finding | None:
    """What the backward pass found."""
    size, bandwidth = seen.profile.memory.gradient_bytes, seen.job.habit("bytes_per_s")
    if seen.job.habit("gradients") != "zeroed" or not size:
        return None
    speedup, arithmetic = None, ""
    if bandwidth and seen.job.step_ms:
        share = min(0.5, 1000 * 3 * size / bandwidth / seen.job.step_ms)
        if share > 0.001:
            speedup, arithmetic = without(share)
    return RULE.finding(
        f"{memory_size(size)} of gradients are zeroed in every step, and read again",
        "optimizer.zero_grad(set_to_none=True), which is the default",
        speedup=speedup,
        arithmetic=arithmetic,
    )


RULE = Rule("F507", "gradients zeroed, not dropped", look)
