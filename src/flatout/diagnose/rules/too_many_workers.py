"""More DataLoader workers than the job has cores.

They take the training loop's own core from it, and each other's. Seen by the loader's settings and the cores
that the process may use (its affinity and the container's quota). What it costs depends on how busy the
workers are, so no gain is predicted. It can be wrong where workers wait for a disk or a network most of the
time: then many of them are right.
"""

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen
from flatout.records.finding import Finding


def look(seen: Seen) -> Finding | None:
    """Workers over cores."""
    cores = seen.job.habit("cores")
    workers = max((int(one.settings.get("num_workers") or 0) for one in seen.profile.loaders), default=0)
    if not cores or workers <= policy.TOO_MANY_WORKERS * int(cores):
        return None
    return RULE.finding(
        f"a DataLoader has {workers} workers, and the job {cores} cores",
        f"num_workers={max(1, int(cores) - 1)}, or fewer; `flatout profile --loader` measures it",
    )


RULE = Rule("F102", "more loader workers than cores", look, ("loader",))
