"""The jobs of this machine, looked at again and again at little cost."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from flatout.records.device import Device, DeviceSample
from flatout.records.processes import ProcessesHere
from flatout.runtime.process_table import Seen, Table, TableReader
from flatout.runtime.who_holds import jobs_on, put_together

# Processor time is what was used between two looks; the first two are this far apart.
FIRST_S = 1.0


Pair = tuple[Device, DeviceSample]


class JobsWatch:
    """Keeps the last table of processes, to tell what each has used of a core since."""

    def __init__(
        self, read: Callable[[], Table] | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = TableReader() if read is None else read
        self._monotonic = monotonic
        self._before: tuple[float, Table] | None = None

    def look(self, gpus: Callable[[], Sequence[Pair]], ended: threading.Event) -> ProcessesHere:
        """Who holds these GPUs, and the jobs that run here; the first look takes a second.

        `gpus` is asked when that second is over: in it, drivers may have answered for the first time.
        """
        if self._before is None:
            self._before = self._monotonic(), self._read()
            ended.wait(FIRST_S)
        at, earlier = self._before
        table, now = self._read(), self._monotonic()
        self._before = now, table
        pairs = gpus()
        jobs = jobs_on(pairs, table)
        seconds = max(now - at, 1e-3)
        used = {one.pid: _share(one, earlier.by_pid, seconds) for job in jobs for one in job.members}
        return put_together(pairs, table, jobs, used, seconds)


def _share(process: Seen, earlier: Mapping[int, Seen], seconds: float) -> float | None:
    """Of one core, since the last look or since it was started."""
    if process.cpu_s is None:
        return None
    before = earlier.get(process.pid)
    if before is None or before.start != process.start or before.cpu_s is None:
        return process.cpu_s / max(process.age_s, 0.01)
    return max(0.0, process.cpu_s - before.cpu_s) / seconds
