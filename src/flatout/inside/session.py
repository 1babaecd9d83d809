"""One session a process: arms the taps, collects what they see, and writes it down in the background."""

import atexit
import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flatout.inside import stopping
from flatout.inside.armed import dismiss, enlist
from flatout.inside.autopsy import AutopsyTap
from flatout.inside.bench import Bench
from flatout.inside.calls_as_steps import CallsTap
from flatout.inside.cleanup import CleanupTap
from flatout.inside.compiler import CompilerTap
from flatout.inside.debugging.tap import DebugTap
from flatout.inside.ending import Ending
from flatout.inside.first_updates import LEARN_AT, FirstUpdates
from flatout.inside.forward import ForwardTap
from flatout.inside.gpu_side import GpuSide
from flatout.inside.guarding import Guarding
from flatout.inside.habits import HabitsTap
from flatout.inside.heartbeat import Heart
from flatout.inside.inspection import Inspection
from flatout.inside.loader import LoaderTap
from flatout.inside.log import EventLog
from flatout.inside.looks import is_looked_at, rise
from flatout.inside.memory import MemoryTap
from flatout.inside.overrides import LoaderOverride
from flatout.inside.pairing import Pairing, seed_everything
from flatout.inside.rack import TAPS, Rack
from flatout.inside.ranges import Ranges
from flatout.inside.rank import RankPlace
from flatout.inside.records_open import OpenRecords
from flatout.inside.repeated_batches import RepeatedBatches
from flatout.inside.same_random import draw_the_same
from flatout.inside.same_samples import SameSamples
from flatout.inside.scene import Scene
from flatout.inside.steps import StepsTap
from flatout.inside.tap import Tap, thread
from flatout.inside.turn import Turn
from flatout.inside.watch import Watch
from flatout.inside.workers import WorkersTap, leave_workers_alone
from flatout.inside.writer import EventWriter
from flatout.records.session import RANKS_FOLDER, STARTING_FOLDER, Order

# Looking at the parts of a step costs a hundred microseconds of a slow host: of every step at first, then of
# one in so many. Updates and evaluations are always seen.
_EVERY_STEP = 256


class Session:
    """What all taps share: the clocks, the step that is under way, and the way to the run folder."""

    def __init__(self, torch: Any, order: Order) -> None:
        self.torch = torch
        self.order = order
        self._rack = rack = Rack()
        # Taps by name and kind; what turns them off, or calls them so that nothing they raise gets out.
        self.tap, self.fail, self.guarded, self.failed = rack.tap, rack.fail, rack.guarded, rack.failed
        self.log = EventLog()
        # How many of loader, model, backward and optimizer are under way.
        self.busy = 0
        # The thread that trains, once it has called `backward()`.
        self.thread = 0
        # Whether this step gets device events at the borders of its parts.
        self.detailed = False
        # Whether the parts of this step are logged at all: every step at first, then one in 32.
        self.watching = True
        self.ranges: Ranges | None = None
        self.updates = 0
        self.facts: dict[str, Any] = {}
        self.device: Any = None
        self.on_gpu = False
        self.gpu = GpuSide(self)
        self.calls = CallsTap(self) if order.infer else None
        self.ending = Ending(self)
        self.pairing = Pairing(self, order.pair_updates) if order.pair_updates else None
        self.turn = Turn(order.folder) if order.takes_turns else None
        self.inspection = Inspection(self, order.inspect_updates) if order.inspect_updates else None
        self.guarding = Guarding(self) if order.guard_updates or order.perturb else None
        self.scene = Scene(self) if order.levers or order.bench else None
        self.bench = Bench(self, self.scene) if order.bench and self.scene is not None else None
        # Where profilers may be switched is known only while this is counted.
        self.records = OpenRecords(torch) if order.record or order.watch_every else None
        # Whoever has a heartbeat runs to its end, and is told of when it becomes slower.
        self.watch = Watch(self, order.watch_every) if order.watch_every or order.heartbeat else None
        self.habits: HabitsTap | None = None
        self.cleanup: CleanupTap | None = None
        self.in_backward = False
        self._memory: MemoryTap | None = None
        self._autopsy: AutopsyTap | None = None
        self._compiler: CompilerTap | None = None
        self._writer: EventWriter | None = None
        self.heart: Heart | None = None
        # Of where this process started, or of the one that it was forked from.
        self._former_heart: Heart | None = None
        self._first_updates = FirstUpdates(self)
        self._worker_loop: Any = None
        self._unsettled = False
        self._pid = os.getpid()
        self._place = RankPlace(torch)

    # Arming and leaving

    def arm(self) -> None:
        """Install every tap that was ordered; one that cannot be installed is noted, and the others go on."""
        self.log.add(("start", time.perf_counter_ns()))
        if self.order.heartbeat:
            self.begin_heart(Path(self.order.folder) / STARTING_FOLDER / self._name)
        self.facts["unix_at_zero_s"] = time.time() - time.perf_counter()
        if self.order.seed is not None:
            seed_everything(self.torch, self.order.seed)
        if self.order.nvtx:  # before the taps, which take it along
            try:
                self.ranges = Ranges(self.torch, capture_from=self.order.capture_from)
            except Exception as error:  # noqa: BLE001 - a torch without NVTX
                self.fail("nvtx", error)
        for name in self.order.taps:
            if name in TAPS:
                self._install(name, TAPS[name])
        self._memory = self.tap("memory", MemoryTap)
        self._autopsy = self.tap("autopsy", AutopsyTap)
        self._compiler = self.tap("compiler", CompilerTap)
        self.habits = self.tap("habits", HabitsTap)
        self.cleanup = self.tap("cleanup", CleanupTap)
        if self.order.debug:
            self._install("debug", DebugTap)
        if self.order.same_random:
            self.guarded("same random", draw_the_same, self.torch)
        if self.order.same_samples:
            self._install("same samples", SameSamples)
        if self.order.loader:
            self._install("loader override", LoaderOverride)
        if self.order.repeat_batches:
            self._install("repeated batches", RepeatedBatches)
        self._worker_loop = leave_workers_alone(self)
        enlist(self)
        atexit.register(self.finish)

    def _install(self, name: str, make: Callable[["Session"], Tap]) -> None:
        self._rack.install(name, lambda: make(self))

    def enter_worker(self) -> WorkersTap | None:
        """This process is a loader's worker: take off all that has no part in making batches."""
        self._rack.leave_on("same samples")
        workers = self._rack.leave_on("workers")
        self.disarm()
        with contextlib.suppress(Exception):
            stopping.end_with_the_loop()
        return workers if isinstance(workers, WorkersTap) else None

    def disarm(self) -> None:
        """Take every tap off, leaving the process as it was found."""
        self._rack.remove_all()
        if self.scene is not None:
            self.scene.hear_no_more()
        if self.calls is not None:
            self.calls.remove()
        if self._worker_loop is not None:
            self._worker_loop.undo()
        if self.records is not None:
            self.records.remove()
        if self.ranges is not None:
            self.ranges.close()
        dismiss(self)
        atexit.unregister(self.finish)

    # The step

    def backward_ended(self, ended_ns: int) -> None:
        """Updates may have been made by hooks of the pass."""
        steps = self.tap("steps", StepsTap)
        if steps is not None:
            self.guarded("steps", steps.backward_ended, ended_ns)

    def close_unwatched(self, ended_ns: int) -> None:
        """The quick end of a step that nobody looked at."""
        self.updates = updates = self.updates + 1
        self.log.add(("step", ended_ns, updates, False))
        if self.heart is not None:
            self.heart.beat(updates)
        if self.watch is not None:
            self.guarded("watch", self.watch.step, ended_ns)
        if is_looked_at(updates + 1) or self.ending.after is not None:
            self.watching = True
            self.gpu.open(updates)

    def close_step(self, ended_ns: int, *, late: bool = False) -> None:
        """An update of the leading optimizer ended; `late` where that is known only inside the next step."""
        self.updates += 1
        updates = self.updates
        memory = None
        if self._memory is not None and self._memory.is_due(updates):
            try:
                memory = self._memory.look()
            except Exception as error:  # noqa: BLE001 - observing never breaks a job
                self.fail("memory", error)
                self._memory = None
            if self._autopsy is not None:
                self.guarded("autopsy", self._autopsy.look)
        if updates <= LEARN_AT or self._unsettled:
            self._unsettled = late
            self._first_updates.settle()
        seen: dict[str, Any] = dict(memory or {})
        if self.order.infer and self.guarding is not None:  # what the outputs came to stands for a loss
            seen |= self.guarding.outputs_so_far()
        self.log.add(("step", ended_ns, updates, seen))
        if self.heart is not None:
            self.heart.beat(updates)
        self.watching = (
            updates < _EVERY_STEP
            or is_looked_at(updates + 1)
            or self.ending.after is not None
            or self.bench is not None
        )
        self.gpu.close(updates, late=late)
        if self.watch is not None and not late:
            self.guarded("watch", self.watch.step, ended_ns)
        if self._compiler is not None:
            self._compiler.look()
        if self.ranges is not None:
            self.ranges.step(updates + 1)
        self.busy = 0
        # A step that is closed late is no place to stop at, nor to begin to count: we are inside the next.
        if not late:
            if self.bench is not None:
                self.bench.step()
            self.ending.look(updates)

    def optimizer_made(self, optimizer: Any) -> None:
        """A new optimizer, after the first updates: another phase begins, perhaps with another model."""
        if self.scene is not None:
            self.scene.optimizer_made(optimizer)
        if self.habits is not None:
            self.habits.optimizer_made()
        forward = self.tap("forward", ForwardTap)
        self.watching = True
        if self.updates and forward is not None:
            self.guarded("forward", forward.watch_again)
            self._unsettled = True

    def memory_rise(self) -> float:
        """By how many bytes a step memory seems to rise, roughly."""
        return rise(self._memory.points) if self._memory is not None else 0.0

    def optimizers(self) -> list[Any]:
        """Every optimizer that has made an update."""
        steps = self.tap("steps", StepsTap)
        return steps.optimizers() if steps is not None else []

    def may_switch_profilers(self) -> bool:
        """Not inside of a record, which crashes: the script's own, or that of an update with a closure."""
        return self.records is not None and not self.records.any()

    def called_inside_of_a_record(self) -> None:
        """A model is called where no profiler may be switched: from now on, that is done before the record.

        So it is with updates that call the model themselves, as all of Lightning's.
        """
        if self.records is None or self.records.before_outermost is not None:
            self.ending.do_without_calls("the model is called inside of a record of torch's profiler")
            return
        self.records.before_outermost = self._before_a_record
        self.ending.wait_one_step_more()

    def _before_a_record(self) -> None:
        if (self.thread and self.thread != thread()) or not self.torch.is_grad_enabled():
            return
        if self.ending.waits_for_a_call:
            self.ending.call_begins()
        elif self.watch is not None and self.watch.waits_for_a_call:
            self.guarded("watch", self.watch.call_begins)

    def roots(self) -> list[Any]:
        """The modules that train."""
        forward = self.tap("forward", ForwardTap)
        return forward.roots if forward is not None else []

    # Ending

    def stop(self) -> None:
        """End a trial at a step boundary, without running the user's `finally` blocks: they would save."""
        self.facts["ended"] = "stopped"
        if self.ranges is not None:
            self.ranges.end_capture()
        self.finish()
        if self._writer is not None:
            stopping.wait_for_other_ranks(self._writer.folder, self.rank_and_world_size()[1])
        stopping.leave()

    def finish(self) -> None:
        """Write what is left. Called at exit; safe to call twice."""
        if os.getpid() != self._pid:
            return
        self.facts.setdefault("ended", "exited")
        if self.watch is not None:
            self.watch.close()
        if "habits" in self.facts:  # more shapes may have come since
            self.guarded("habits", self._first_updates.learn_habits)
        steps = self.tap("steps", StepsTap)
        if steps is not None:
            self.guarded("steps", steps.flush)
        if self.calls is not None:
            self.guarded("calls", self.calls.flush)
        self.guarded("device", self.gpu.drain)
        debug = self.tap("debug", DebugTap)
        if debug is not None:
            self.guarded("debug", debug.close)
        writer = self._running_writer()
        for name, written in (("inspection", self.inspection), ("guarding", self.guarding)):
            if written is not None:
                self.guarded(name, written.write, writer.folder)
        writer.close()

    # What is known of the process

    def rank_and_world_size(self) -> tuple[int, int]:
        """This process's place among the ranks."""
        return self._place.look()

    def describe(self) -> dict[str, Any]:
        """What there is to know of this process, beside its steps."""
        rank, world_size = self.rank_and_world_size()
        loader, workers = self.tap("loader", LoaderTap), self.tap("workers", WorkersTap)
        compiler = self.tap("compiler", CompilerTap)
        return {
            "pid": self._pid,
            "parent_pid": os.getppid(),
            "rank": rank,
            "world_size": world_size,
            "arguments": sys.argv,
            "torch": str(self.torch.__version__),
            "updates": self.updates,
            "taps": self._rack.names(),
            "failed_taps": self.failed,
            "loaders": loader.settings() if loader is not None else [],
            "in_loop": workers.totals() if workers is not None else None,
            "graph_breaks": compiler.graph_breaks() if compiler is not None else {},
            "pairing": self.pairing.describe() if self.pairing is not None else None,
            **self.facts,
        }

    def folder(self) -> Path:
        """Where this process leaves what it has seen."""
        return self._running_writer().folder

    def write_now(self) -> Path:
        """Write down what was seen so far; where."""
        writer = self._running_writer()
        writer.write_now()
        return writer.folder

    @property
    def _name(self) -> str:
        return f"{self.rank_and_world_size()[0]}-{self._pid}"

    def begin_heart(self, folder: Path) -> None:
        """A sign of life for whoever watches: while it starts, then from its first update on."""
        former = self.heart or self._former_heart
        self.heart = self._former_heart = None
        try:
            self.heart = Heart(folder)
            if former is not None:
                former.stop()
        except Exception as error:  # noqa: BLE001 - observing never breaks a job
            self.fail("heartbeat", error)

    def _running_writer(self) -> EventWriter:
        if self._writer is None:
            folder = Path(self.order.folder) / RANKS_FOLDER / self._name
            self._writer = EventWriter(folder, self.log, self.describe, self._tick)
        return self._writer

    def _tick(self) -> None:
        """A few times a second, in the writer's thread."""
        if self.heart is not None and self._writer is not None and self._writer.had_news:
            self.heart.sign()
        if self.order.trial:
            stopping.end_if_the_keeper_is_gone()
            asked = stopping.asked_to_stop_after(Path(self.order.folder))
            if asked is not None:
                self.ending.ask(asked)
            if self.bench is not None:
                self.bench.look()

    def before_fork(self) -> None:
        """Python warns of a fork with threads about; ours is none that the script should hear of."""
        if self._writer is not None:
            self._writer.pause()

    def after_fork_here(self) -> None:
        """Go on."""
        if self._writer is not None:
            self._writer.resume()

    def after_fork(self) -> None:
        """A forked child may be a rank of its own: it starts to count afresh, into a folder of its own."""
        self._pid = os.getpid()
        self._former_heart, self.heart = self.heart, None
        self._writer = None
        self.gpu.leave_to_the_parent()
        self.log.drain()
        self.log.add(("start", time.perf_counter_ns()))
        self.updates = self.busy = 0
        self.in_backward, self.thread, self.watching = False, 0, True
        self._place.forget()
        if self._memory is not None:
            self._memory.points.clear()
        steps = self.tap("steps", StepsTap)
        if steps is not None:
            steps.restart()


def start_session(torch: Any, order_path: str) -> Session:
    """Read the order and arm a session."""
    session = Session(torch, Order.read(Path(order_path)))
    session.arm()
    return session
