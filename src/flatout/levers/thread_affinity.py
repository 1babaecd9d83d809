"""Threads on the cores that are next to the GPU."""

import contextlib
import multiprocessing
import os
from pathlib import Path

from flatout.levers.job import JobFacts
from flatout.levers.lever import Lever, Refused, Settings
from flatout.levers.numa import SYSFS, node_of_gpu, nodes

Cores = set[int] | frozenset[int]


class ThreadAffinity(Lever):
    """Keeps the job's threads and loader workers on the cores of the GPU's own NUMA node.

    On a machine with several sockets, a thread on the wrong one reaches the GPU, and memory of the other
    threads, through the link between them: launches and copies take longer. Refused on machines with one
    node, where nobody says to which node the GPU belongs, and where the job may not use all cores: then
    somebody has chosen them.
    """

    id = "thread-affinity"
    title = "cores next to the GPU"
    safety = "exact"
    # Where Linux describes the machine.
    sysfs: Path = SYSFS

    @classmethod
    def check(cls, job: JobFacts) -> str:
        """Needs several nodes, one of them the GPU's, and all cores."""
        if not job.on_gpu:
            return "the job does not train on a GPU"
        known = job.habit("numa")
        if known is None:
            return "this system does not say which cores a thread may use"
        return _refusal(known["nodes"], known["of_gpu"], known["allowed"], known["cores"])

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """Depends on where the threads were: nobody knows before it is tried."""
        return 1.02

    def apply(self) -> None:
        """Move every thread of this process, and the workers that it has; those to come inherit it."""
        self._found: dict[int, Cores] = {}
        torch, device = self.scene.torch, self.scene.device
        if device.type != "cuda":
            raise Refused("the job does not train on a GPU")
        if not hasattr(os, "sched_setaffinity"):
            raise Refused("this system does not say which cores a thread may use")
        known, node = nodes(self.sysfs), node_of_gpu(torch, device, self.sysfs)
        self._before: Cores = os.sched_getaffinity(0)
        reason = _refusal(len(known), node, len(self._before), os.cpu_count())
        if reason or node is None:
            raise Refused(reason)
        self._cores: Cores = known.get(node, frozenset()) & self._before
        if not self._cores:
            raise Refused(f"none of the cores of node {node} may be used")
        for thread in _threads():
            self._move(thread, self._cores)

    def undo(self) -> None:
        """Where they were; threads that came since go where the training thread was."""
        for thread in {*_threads(), *self._found}:
            with contextlib.suppress(OSError):
                if os.sched_getaffinity(thread) == self._cores:  # else somebody has moved it since
                    os.sched_setaffinity(thread, self._found.get(thread, self._before))
        self._found = {}

    def _move(self, thread: int, cores: Cores) -> None:
        with contextlib.suppress(OSError):  # it has ended
            found = os.sched_getaffinity(thread)
            os.sched_setaffinity(thread, cores)
            self._found[thread] = found


def _threads() -> list[int]:
    """Of this process and of its loader workers."""
    found = []
    for process in [os.getpid(), *(child.pid for child in multiprocessing.active_children() if child.pid)]:
        with contextlib.suppress(OSError):
            found += [int(task.name) for task in Path(f"/proc/{process}/task").iterdir()]
    return found


def _refusal(count: int, node: int | None, allowed: int, cores: int | None) -> str:
    if count < 2:
        return "the machine has one NUMA node"
    if node is None:
        return "nobody says to which NUMA node the GPU belongs"
    if cores is not None and allowed < cores:
        return f"somebody has chosen its cores already: {allowed} of {cores}"
    return ""
