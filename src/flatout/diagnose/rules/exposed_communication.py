"""Ranks talk while nothing computes.

Gradients that are exchanged beside the backward pass cost nothing; what is left over at its end does. Seen by
communication in recorded steps at instants when no kernel computes. What may be waiting for a slower rank is
taken off (F701 tells of that one), unless it is that rank which is shown. The gain is that time. It can be
wrong where ranks take turns to be slow.
"""

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen, without
from flatout.records.finding import Finding


def look(seen: Seen) -> Finding | None:
    """Its share of the step, beyond waiting for a rank that is slow."""
    share = seen.share("communication") - seen.waits_for_a_slow_rank()
    if share < policy.COMMUNICATION:
        return None
    speedup, arithmetic = without(min(0.9, share), 4.0)
    return RULE.finding(
        f"{share:.0%} of a step is communication that nothing hides",
        "larger buckets (DDP bucket_cap_mb), gradient_as_bucket_view, fewer but larger collectives",
        speedup=speedup,
        arithmetic=arithmetic,
    )


RULE = Rule("F702", "exposed communication", look, needs_only_a_trace=True)
