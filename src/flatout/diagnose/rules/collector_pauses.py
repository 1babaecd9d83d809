"""Python's garbage collector stops the training loop.

It walks over every object of a large program, most of which live as long as the job. Seen by its own
callbacks. The gain is that of its time going away, when what exists after the warm-up is frozen. It can be
wrong for a loop that makes many cycles of objects: then it has something to collect.
"""

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen, without
from flatout.records.finding import Finding


def look(seen: Seen) -> Finding | None:
    """Its share of a step."""
    share = float(seen.job.habit("collector_share", 0.0))
    if share < policy.COLLECTOR or seen.profile.steps < policy.COLLECTOR_STEPS:
        return None
    speedup, arithmetic = without(share)
    return RULE.finding(
        f"the garbage collector takes {seen.profile.collector_ms:.2f} ms of a step, {share:.1%}",
        "gc.collect(); gc.freeze() after the first steps",
        speedup=speedup,
        arithmetic=arithmetic,
    )


RULE = Rule("F202", "the garbage collector pauses the loop", look, ("garbage-collector",))
