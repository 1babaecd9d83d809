"""The optimizer updates parameters one operation at a time.

Each reads and writes all of them; a fused kernel does so once. Seen by the optimizer's own settings and the
share of the step that updates take. The gain is that of updates two and a half times as fast. It can be wrong
where updates wait for something else, such as gradients from other ranks.
"""

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen, without
from flatout.levers.fused_optimizer import FusedOptimizer
from flatout.records.finding import Finding

_TIMES_FASTER = 2.5


def look(seen: Seen) -> Finding | None:
    """Updates over the policy's share, and a fused kernel for them."""
    if not seen.job.habits or FusedOptimizer.check(seen.job):
        return None
    share = (seen.job.device_shares or seen.job.host_shares).get("optimizer", 0.0)
    if share < policy.OPTIMIZER:
        return None
    names = ", ".join(sorted({one["name"] for one in seen.job.habit("optimizers") or ()}))
    speedup, arithmetic = without(share, _TIMES_FASTER)
    return RULE.finding(
        f"{names} takes {share:.0%} of a step, and is not fused",
        "pass fused=True to the optimizer",
        speedup=speedup,
        arithmetic=arithmetic,
        where=seen.place("optimizer"),
    )


RULE = Rule("F303", "the optimizer is not fused", look, ("fused-optimizer",))
