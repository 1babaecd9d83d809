"""The training loop waits for its DataLoader.

The device has nothing to do meanwhile. Seen by the time that the loop spends in the loader's `next`, on the
device's own clock where there is one. The gain is what Amdahl's law gives when nearly all of the wait goes
away; more workers give that as long as there are cores, faster loading code always. It can be wrong for a
loader that is slow only in the first batches of an epoch: such steps are not steady, and not counted.
"""

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen, without
from flatout.records.finding import Finding


def look(seen: Seen) -> Finding | None:
    """Wait over the policy's share."""
    share = seen.share("input_wait")
    if share < policy.WAITS_FOR_DATA:
        return None
    loader = max(seen.profile.loaders, key=lambda one: one.wait_ms, default=None)
    evidence = f"{share:.0%} of a step passes waiting for data"
    if loader is not None:
        workers = loader.settings.get("num_workers")
        evidence += f": {loader.wait_ms:.1f} ms for a batch of {loader.data_set}, with {workers} workers"
        if loader.load_ms is not None:
            evidence += f"; making one takes {loader.load_ms + (loader.collate_ms or 0.0):.1f} ms"
    speedup, arithmetic = without(share)
    return RULE.finding(
        evidence,
        "flatout tune tries the DataLoader's settings; flatout profile --loader shows them all",
        speedup=speedup,
        arithmetic=arithmetic,
    )


RULE = Rule("F101", "the loop waits for data", look, ("loader",))
