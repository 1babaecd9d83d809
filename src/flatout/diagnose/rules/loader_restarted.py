"""A DataLoader starts its workers anew in every epoch.

Each start forks processes, imports modules in them, and loses what they had prefetched. Seen by iterators
that were started while the job trained, how long each start took, and by `persistent_workers=False`. The
gain is what the starts took of the time that was watched. It can be wrong for a job with few, long epochs:
what was watched may hold more starts than the rest will. Workers that live on never hear of what a script
changes about its data set between passes (`set_epoch`, a curriculum): `flatout run` starts them anew then.
"""

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen, without
from flatout.records.finding import Finding


def look(seen: Seen) -> Finding | None:
    """Several starts of a loader with workers that do not persist."""
    step = seen.profile.step_ms
    for loader in seen.profile.loaders:
        settings = loader.settings
        if not settings.get("num_workers") or settings.get("persistent_workers") or loader.starts < 2:
            continue
        if step is None or not seen.profile.updates:
            continue
        share = loader.starts * loader.start_ms / (seen.profile.updates * step.mean)
        if share < policy.STALLS:
            continue
        speedup, arithmetic = without(min(share, 0.9))
        return RULE.finding(
            f"{loader.starts} starts of {settings['num_workers']} workers in {seen.profile.updates} updates, "
            f"{loader.start_ms:.0f} ms each",
            "DataLoader(..., persistent_workers=True), if nothing changes the data set between passes",
            speedup=speedup,
            arithmetic=arithmetic,
        )
    return None


RULE = Rule("F106", "workers are started in every epoch", look, ("loader",))
