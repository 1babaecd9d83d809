"""One session a process: arms the taps, collects what they see, and writes it down in the background."""

import atexit
import importlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flatout.inside.backward import BackwardTap
from flatout.inside.collector import CollectorTap
from flatout.inside.draft import StepDraft
from flatout.inside.forward import ForwardTap
from flatout.inside.loader import LoaderTap
from flatout.inside.steps import StepsTap
from flatout.inside.tap import Tap
from flatout.inside.writer import StepWriter
from flatout.records.session import RANKS_FOLDER, Order

_TAPS: dict[str, Callable[["Session"], Tap]] = {
    "steps": StepsTap,
    "loader": LoaderTap,
    "backward": BackwardTap,
    "forward": ForwardTap,
    "collector": CollectorTap,
}


class Session:
    """What all taps share: the clock, the step that is under way, and the way to the run folder."""

    def __init__(self, torch: Any, order: Order) -> None:
        self.torch = torch
        self.order = order
        self.draft = StepDraft(started_ns=time.perf_counter_ns())
        self.failed: dict[str, str] = {}
        self.updates = 0
        self.facts: dict[str, Any] = {}
        self._taps: dict[str, Tap] = {}
        self._writer: StepWriter | None = None
        self._pid = os.getpid()

    def arm(self) -> None:
        """Install every tap that was ordered; one that cannot be installed is noted, and the others go on."""
        if self.order.seed is not None:
            self._seed(self.order.seed)
        for name in self.order.taps:
            if name not in _TAPS:
                continue
            try:
                tap = _TAPS[name](self)
                tap.install()
                self._taps[name] = tap
            except Exception as error:  # noqa: BLE001 - a tap may fail alone
                self.fail(name, error)
        self._leave_loader_workers_alone()
        os.register_at_fork(after_in_child=self._after_fork)
        atexit.register(self.finish)

    def fail(self, name: str, error: Exception) -> None:
        """Turn a tap off for good, and remember why."""
        self.failed.setdefault(name, f"{type(error).__name__}: {error}")
        tap = self._taps.pop(name, None)
        if tap is not None:
            tap.remove()

    def close_step(self, ended_ns: int, done: StepDraft | None = None) -> None:
        """A step is done: hand it to the writer and begin the next.

        `done` is the step as it stood at `ended_ns`, where it is closed only now; the rest is the next's.
        """
        whole = self.draft
        if done is None:
            done, self.draft = whole, StepDraft(started_ns=ended_ns)
        else:
            self.draft = whole.after(done, ended_ns)
        self.updates += 1
        if self._writer is None:
            self._writer = StepWriter(self._folder(), self.describe)
        self._writer.put(done.finished(self.updates, ended_ns))
        forward = self._taps.get("forward")
        if isinstance(forward, ForwardTap):
            forward.settle()
        if self.updates == self.order.stop_after_updates:
            self.stop()

    def stop(self) -> None:
        """End a trial at a step boundary, without running the user's `finally` blocks: they would save."""
        self.facts["ended"] = "stopped"
        self.finish()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def finish(self) -> None:
        """Write what is left. Called at exit; safe to call twice."""
        if os.getpid() != self._pid:
            return
        self.facts.setdefault("ended", "exited")
        steps = self._taps.get("steps")
        if isinstance(steps, StepsTap):
            steps.flush()
        if self._writer is None:
            self._writer = StepWriter(self._folder(), self.describe)
        self._writer.close()

    def disarm(self) -> None:
        """Take every tap off, leaving the process as it was found."""
        for tap in list(self._taps.values()):
            tap.remove()
        self._taps.clear()
        atexit.unregister(self.finish)

    def describe(self) -> dict[str, Any]:
        """What there is to know of this process, beside its steps."""
        return {
            "pid": self._pid,
            "parent_pid": os.getppid(),
            "rank": int(os.environ.get("RANK", "0")),
            "world_size": int(os.environ.get("WORLD_SIZE", "1")),
            "arguments": sys.argv,
            "torch": str(self.torch.__version__),
            "updates": self.updates,
            "taps": sorted(self._taps),
            "failed_taps": self.failed,
            **self.facts,
        }

    def _folder(self) -> Path:
        rank = os.environ.get("RANK", "0")
        return Path(self.order.folder) / RANKS_FOLDER / f"{rank}-{self._pid}"

    def _seed(self, seed: int) -> None:
        import random

        random.seed(seed)
        self.torch.manual_seed(seed)
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed(seed % 2**32)

    def _leave_loader_workers_alone(self) -> None:
        """A DataLoader worker is known by its loop, not by being a child: ranks are children too."""
        worker: Any = importlib.import_module("torch.utils.data._utils.worker")
        real = worker._worker_loop  # noqa: SLF001
        session = self

        def _worker_loop(*args: Any, **kwargs: Any) -> Any:
            session.disarm()
            return real(*args, **kwargs)

        worker._worker_loop = _worker_loop  # noqa: SLF001

    def _after_fork(self) -> None:
        """A forked child may be a rank of its own: it starts to count afresh, into a folder of its own."""
        self._pid = os.getpid()
        self._writer = None
        self.updates = 0
        self.draft = StepDraft(started_ns=time.perf_counter_ns())
        steps = self._taps.get("steps")
        if isinstance(steps, StepsTap):
            steps.restart()


def start_session(torch: Any, order_path: str) -> Session:
    """Read the order and arm a session."""
    session = Session(torch, Order.read(Path(order_path)))
    session.arm()
    return session
