"""How busy others keep this machine: what is measured beside them may be slower than it would be alone."""

import contextlib
import os
import time

import psutil

# Long enough to see a loop at work, and short beside the start of any job.
_LOOK_S = 0.4


def cores_of_others(look_s: float = _LOOK_S) -> float | None:
    """How many of the cores that this process may use are at work for others; None where nobody can tell."""
    with contextlib.suppress(OSError, NotImplementedError, RuntimeError):
        before, own = _at_work_s(), time.process_time()
        time.sleep(look_s)
        after, own = _at_work_s(), time.process_time() - own
        busy = sum(late - early for early, late in zip(before, after, strict=True)) - own
        return max(0.0, min(busy / look_s, float(len(after))))
    return None


def _at_work_s() -> list[float]:
    """By core: what it worked since the machine was started."""
    times = psutil.cpu_times(percpu=True)
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(times))
    # Time of guests counts as the host's already; who waits for a disk does not work.
    return [
        sum(getattr(one, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))
        for number, one in enumerate(times)
        if number in allowed
    ]
