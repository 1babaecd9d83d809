"""Batches are copied to the GPU from pageable memory.

Such a copy runs at a third of the link's rate, and the host waits for it. Seen by a DataLoader without
`pin_memory` in a job on a GPU that spends time on copies. The gain is that of copies three times as fast. It
can be wrong where the loop itself pins, or where batches are made on the device.
"""

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen, without
from flatout.records.finding import Finding

_TIMES_FASTER = 3.0


def look(seen: Seen) -> Finding | None:
    """Copies over the policy's share, and no pinning."""
    share = seen.share("host_to_device")
    unpinned = [one for one in seen.profile.loaders if not one.settings.get("pin_memory")]
    if not seen.job.on_gpu or not unpinned or share < policy.COPIES:
        return None
    speedup, arithmetic = without(share, _TIMES_FASTER)
    return RULE.finding(
        f"copies to the GPU take {share:.0%} of a step, from memory that is not pinned",
        "DataLoader(..., pin_memory=True) and .to(device, non_blocking=True)",
        speedup=speedup,
        arithmetic=arithmetic,
    )


RULE = Rule("F103", "batches are not pinned", look, ("loader", "device-prefetch"), silent_beside=("F107",))
