"""`flatout.log({"loss": loss}, step=i)`: numbers to trackers, without waiting for the GPU or for a network.

The first call decides where they go: to the sinks of `flatout.log.to(...)`, else to those that FLATOUT_LOG_TO
names, else to a plain file. Under `flatout run` they lie in the run folder, too, from where Flatout's own
process takes them to the sinks of --log-to. In a trial (`profile`, `tune`) they are read and go nowhere.
"""

import atexit
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout.inside.logged import LoggedCalls
from flatout.records.errors import CallerMistake
from flatout.records.places import PROJECT_FOLDER
from flatout.records.points import LOGGED_FILE, Point
from flatout.records.protection import ON_ITS_WAY_BACK
from flatout.records.session import RANKS_FOLDER, SESSION_VARIABLE, Order

if TYPE_CHECKING:
    from flatout.monitor.sinks.catalogue import Target
    from flatout.monitor.sinks.outbox import Outbox

LOG_TO_VARIABLE = "FLATOUT_LOG_TO"
_AT_EXIT_S = 10.0


class Log:
    """Sends numbers to trackers, without waiting for a GPU or for a network.

        flatout.log.to("tensorboard", "runs/x")              # or "wandb", "mlflow", "jsonl"; or several
        for i, batch in enumerate(loader):
            ...
            flatout.log({"loss": loss, "lr": 3e-4}, step=i)  # `loss` is not read: no `.item()`
        flatout.log.flush()                                  # waits; at exit the rest is delivered by itself

    Values are Python's and numpy's numbers, and tensors with one element on any device. Of a tensor on a GPU
    a copy goes to pinned memory behind the work before it, and a thread hands it on when the device got
    there: the value is that of the call, whatever becomes of the tensor. `step` counts the calls where it is
    left out.

    Nobody waits for a sink. One that is too slow loses its oldest points, one that fails is turned off, and
    either is said once on standard error; `flatout.log.dropped` counts. Without `to`, FLATOUT_LOG_TO names
    sinks (`tensorboard:runs/x,wandb:project`), and else it is a file in .flatout/logs. Of several ranks the
    first logs, or all with `flatout.log.to(..., every_rank=True)`. Any thread may call it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begin()
        os.register_at_fork(
            before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._in_child
        )

    def _begin(self) -> None:
        self._chosen: list[tuple[Target, bool]] = []
        self._outboxes: list[Outbox] = []
        self._calls = LoggedCalls(self._deliver, _tell)
        self._is_open = False
        self._count = 0
        self._rank: int | None = None
        self._compiled: Any = None

    def __call__(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Log numbers by name: Python's, numpy's, or tensors with one element, on any device.

        Returns at once; the numbers are those of now, whatever happens to the tensors afterwards. `step`
        counts the calls where it is left out. Of several ranks the first logs, or all with `every_rank`.
        """
        if "torch._dynamo" in sys.modules:
            self._outside_of_graphs()(values, step)
        else:
            self._log(values, step)

    # Code that is compiled around it leaves its graph for the call, and comes back.
    __call__._torchdynamo_disable = True  # type: ignore[attr-defined]  # noqa: SLF001

    def to(self, kind: str, place: str | os.PathLike[str] = "", *, every_rank: bool = False) -> None:
        """Send it to a "tensorboard" folder, a "wandb" project, an "mlflow" experiment or a "jsonl" file.

        Say so before the first call; several may be named. With `every_rank`, all ranks log, each to a place
        or a run of its own.
        """
        from flatout.monitor.sinks.catalogue import target

        chosen = target(kind, os.fspath(place))
        with self._lock:
            self._chosen.append((chosen, every_rank))
            if self._is_open:
                self._open(chosen, every_rank=every_rank)

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until everything is where it belongs, at most for so long; whether it is."""
        deadline = time.monotonic() + timeout_s
        done = [self._calls.flush(timeout_s)]
        done += [outbox.flush(max(0.0, deadline - time.monotonic())) for outbox in self._outboxes]
        return all(done)

    @property
    def dropped(self) -> int:
        """How many numbers or calls came too fast, or for a sink that is off."""
        return self._calls.dropped + sum(outbox.dropped for outbox in self._outboxes)

    def close(self, timeout_s: float = _AT_EXIT_S) -> None:
        """Deliver the rest, close all sinks and forget them: the next call begins anew. Happens at exit."""
        from flatout.monitor.sinks.outbox import close_all

        deadline = time.monotonic() + timeout_s
        self._calls.flush(timeout_s)
        self._calls.pause()
        close_all(self._outboxes, max(0.0, deadline - time.monotonic()))
        self._begin()

    # A call

    def _log(self, values: Mapping[str, Any], step: int | None) -> None:
        if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
            raise CallerMistake(
                f"flatout.log was given {values!r:.80}",
                expected="numbers by name",
                remedy='flatout.log({"loss": loss}, step=i)',
            )
        number = self._count if step is None else _whole(step)
        self._count += 1
        if not self._is_open:
            with self._lock:
                if not self._is_open:
                    self._open_all()
        if (self._rank == 0 or self._outboxes) and not _is_void():
            self._calls.add(number, values)

    def _outside_of_graphs(self) -> Any:
        if self._compiled is None:
            self._compiled = sys.modules["torch._dynamo"].disable(self._log)
        return self._compiled

    def _deliver(self, point: Point) -> None:
        for outbox in self._outboxes:
            outbox.put(point)

    # Where to

    def _open_all(self) -> None:
        """Find out where this process stands, and what it is to log to."""
        rank = self._rank = _rank()
        self._is_open = True
        order = _order()
        if order is not None and order.trial:
            return
        for chosen, every_rank in self._chosen:
            self._open(chosen, every_rank=every_rank)
        if not self._chosen and os.environ.get(LOG_TO_VARIABLE):
            from flatout.monitor.sinks.catalogue import targets

            for one in targets(os.environ[LOG_TO_VARIABLE]):
                self._open(one)
        if order is not None:
            place = Path(order.folder) / RANKS_FOLDER / f"{rank}-{os.getpid()}" / LOGGED_FILE
            self._open_file(place)
        elif not self._chosen and not self._outboxes:
            self._open_file(
                Path(PROJECT_FOLDER) / "logs" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.jsonl"
            )

    def _open_file(self, path: Path) -> None:
        from flatout.monitor.sinks.catalogue import target

        self._open(target("jsonl", str(path)))

    def _open(self, chosen: "Target", *, every_rank: bool = False) -> None:
        from flatout.monitor.sinks.mlflow_run import active_run
        from flatout.monitor.sinks.outbox import Outbox
        from flatout.monitor.sinks.protocol import About

        rank = self._rank or 0
        order = _order()
        if (rank and not every_rank) or (order is not None and order.trial):
            return
        mine = chosen.of_rank(rank)
        about = About(
            name=f"rank {rank}" if every_rank and rank else "",
            own_run=active_run() if chosen.kind == "mlflow" else "",
        )
        self._close_at_exit()
        self._outboxes.append(
            Outbox(chosen.kind, lambda: mine.open(about), _tell, on_open=self._close_at_exit)
        )

    def _close_at_exit(self) -> None:
        """Before a tracker's own end: what was asked for last comes first."""
        atexit.unregister(self.close)
        atexit.register(self.close)

    # Forks

    def _before_fork(self) -> None:
        self._calls.pause()
        for outbox in self._outboxes:
            outbox.pause()

    def _after_fork(self) -> None:
        for outbox in self._outboxes:
            outbox.resume()
        self._calls.resume()

    def _in_child(self) -> None:
        """A process of its own: it has no sinks until it chooses some, and logs nothing twice."""
        self._lock = threading.Lock()
        self._calls.leave_to_the_parent()
        self._begin()


def _whole(step: Any) -> int:
    if type(step) is int:
        return step
    on_device = getattr(getattr(step, "device", None), "type", "cpu") != "cpu"
    if not on_device:  # reading one there would wait for it
        try:
            return int(step.__index__())
        except (AttributeError, TypeError, ValueError):
            pass
    raise CallerMistake(
        f"flatout.log was given the step {step!r:.60}" if not on_device else "the step lies on a GPU",
        expected="a whole number",
        remedy="count steps in Python",
    )


def _rank() -> int:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdigit() else 0


def _session() -> Any:
    inside = sys.modules.get("flatout.inside.armed")
    return inside.armed_session() if inside is not None else None


def _is_void() -> bool:
    """Whether what the script computes is not real: tensors without memory, a loop that is run again."""
    session = _session()
    if session is None:
        return False
    return session.order.imagine or ON_ITS_WAY_BACK in (session.facts.get("protection") or ())


def _order() -> Order | None:
    """What Flatout wants of this process, where it was started by it, or is observed by itself."""
    session = _session()
    if session is not None:
        order: Order = session.order
        return order
    path = os.environ.get(SESSION_VARIABLE)
    return Order.read(Path(path)) if path else None


def _tell(text: str) -> None:
    sys.stderr.write(f"flatout.log: {text}\n")


log = Log()
