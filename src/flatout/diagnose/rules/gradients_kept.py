"""Gradients are never set back: each step adds to those of all steps before.

A forgotten `optimizer.zero_grad()`. The model then learns from a sum of all batches that it has seen. Seen by
gradients that are not zero when the first backward pass after an update begins, in two updates. It can be
wrong for a script that means to accumulate over updates, which is rare.
"""

from flatout.diagnose.rule import Rule, Seen
from flatout.records.finding import Finding


def look(seen: Seen) -> Finding | None:
    """What the backward pass found."""
    if seen.job.habit("gradients") != "kept":
        return None
    return RULE.finding(
        "the gradients of the step before are still there when the next backward pass begins",
        "optimizer.zero_grad() in every step",
        where=seen.place("optimizer"),
        severity="high",
    )


RULE = Rule("F506", "gradients that are never zeroed", look, harms=True)
