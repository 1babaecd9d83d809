"""The workers of a DataLoader are busy all the time, and the loop still waits.

More workers give more batches as long as there are cores. Seen by the share of the time in which workers make
batches, and by cores that the job may use and does not. The gain is what is left of a step when the wait
shrinks by the ratio of cores to workers. It can be wrong where workers wait for a disk or a network: more of
them do not make that faster.
"""

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen, without
from flatout.records.finding import Finding


def look(seen: Seen) -> Finding | None:
    """Busy workers, idle cores, and a loop that waits."""
    share, cores = seen.share("input_wait"), seen.job.habit("cores")
    if share < policy.WAITS_FOR_DATA or not cores:
        return None
    for loader in seen.profile.loaders:
        workers = loader.settings.get("num_workers") or 0
        busy = loader.workers_busy_share
        if not workers or busy is None or busy < policy.WORKERS_BUSY or workers >= cores:
            continue
        speedup, arithmetic = without(share, cores / workers)
        return RULE.finding(
            f"{workers} workers make batches {busy:.0%} of the time, the loop waits {share:.0%} of it, "
            f"and there are {cores} cores",
            f"DataLoader(..., num_workers={cores}); flatout tune finds the number that pays",
            speedup=speedup,
            arithmetic=arithmetic,
        )
    return None


RULE = Rule("F104", "too few workers", look, ("loader",))
