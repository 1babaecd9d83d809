"""The forward tap: finds the root modules, then takes a seat on each to time its calls.

`Module.__call__` is patched only until the roots are known: the compiler traces into it. From then on each
root carries a seat (`seats.py`).
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flatout.inside.evaluation_calls import EvaluationCalls
from flatout.inside.seats import Seat, inner_of, replicated
from flatout.inside.tap import Patch, clock, thread, undo_all, unseen

if TYPE_CHECKING:
    from flatout.inside.session import Session


class ForwardTap:
    """Logs the outermost calls of modules: whether gradients were on, and the batch that went in."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._patches: list[Patch] = []
        self._call_patch: Patch | None = None
        # Threads that are inside a root: what they call there is the root's own business.
        self._inside: set[int] = set()
        self._trained: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        self._evaluations = EvaluationCalls(session.log.add)
        self._seats: list[Seat] = []
        self._seats_with_levers: list[Seat] = []

    def install(self) -> None:
        """Watch every module call until the first update shows which ones train."""
        module = self._session.torch.nn.Module
        self._patches = [Patch(module, "train", self._watching_the_mode(module.train))]
        self.watch_again()

    def remove(self) -> None:
        """Leave the seats and the class as they were found."""
        if self._call_patch is not None:
            self._call_patch.undo()
        undo_all(self._patches)
        for seat in [*self._seats[::-1], *self._seats_with_levers[::-1]]:
            seat.leave()
        self._seats, self._seats_with_levers = [], []

    def watch_again(self) -> None:
        """Watch every call (again): a new optimizer may train a model that nobody has seen."""
        if self._call_patch is None:
            module = self._session.torch.nn.Module
            self._call_patch = Patch(module, "__call__", self._watched(module.__call__))

    def _let_go(self) -> None:
        if self._call_patch is not None:
            self._call_patch.undo()
            self._call_patch = None

    def settle(self, optimized: set[int]) -> None:
        """An update is done: take the seats and let go of `Module.__call__`.

        Samples are counted for the root in which the optimizer holds most.
        """
        if self._call_patch is None or not self._trained:
            return
        self._let_go()
        sizes = {key: _size(root, optimized) for key, root in self._trained.items()}
        lead = max(sizes, key=sizes.__getitem__)
        self._session.log.add(("root", self._number(self._trained[lead])))
        copied = {one for root in self._trained.values() for one in replicated(root)}
        for root in [root for root in self._trained.values() if id(root) not in copied]:
            self._sit(root)
            inner = inner_of(root)
            if inner is not None:
                self._sit(inner)  # evaluation often calls the wrapped module directly

    @property
    def roots(self) -> list[Any]:
        """The modules that train, those called first at the head."""
        return list(self._trained.values())

    def _sit(self, root: Any) -> None:
        if not any(seat.is_on(root) for seat in self._seats):
            self._seats.append(Seat(root, lambda call: self._seat(root, call)))

    def _is_elsewhere(self) -> bool:
        """Another thread's call, or one of the way back: checkpoints call parts of a model once more."""
        trains = self._session.thread
        if trains != 0 and trains != thread():
            return True
        return bool(self._session.torch._C._current_graph_task_id() != -1)  # noqa: SLF001

    def _number(self, module: Any) -> int:
        return self._numbers.setdefault(id(module), len(self._numbers))

    def _watched(self, real: Callable[..., Any]) -> Callable[..., Any]:
        is_compiling = self._session.torch.compiler.is_compiling
        tap = self

        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            # The compiler folds this into a constant, and sees nothing else of us.
            if is_compiling() or thread() in tap._inside or tap._is_elsewhere():
                return real(module, *args, **kwargs)
            if "_is_replica" in module.__dict__:  # a thread of DataParallel, inside of the root's call
                return real(module, *args, **kwargs)
            return tap._call(module, tap._number(module), functools.partial(real, module), args, kwargs)

        return unseen(__call__)

    def _seat(self, root: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        tap, number, session = self, self._number(root), self._session
        grad_enabled, infers = session.torch.is_grad_enabled, session.order.infer
        is_compiling = self._session.torch.compiler.is_compiling

        def seat(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or thread() in tap._inside:
                return call(*args, **kwargs)
            if not session.watching and grad_enabled() and not infers:
                return call(*args, **kwargs)
            if tap._is_elsewhere():
                return call(*args, **kwargs)
            if not infers:
                session.watching = True  # an evaluation is seen to its end, whenever it comes
            return tap._call(root, number, call, args, kwargs)

        return unseen(seat)

    def _watching_the_mode(self, real: Callable[..., Any]) -> Callable[..., Any]:
        session = self._session
        trained, log, evaluations = self._trained, session.log.add, self._evaluations

        @functools.wraps(real)
        def train(module: Any, mode: bool = True) -> Any:
            if id(module) in trained and module.training != mode:
                session.watching = True
                evaluations.over()
                now = clock()
                log(("mode", now, now, bool(mode)))
                if not mode and session.cleanup is not None:
                    session.guarded("cleanup", session.cleanup.before_evaluation)
            return real(module, mode)

        return unseen(train)

    @unseen
    def _call(self, module: Any, number: int, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        session = self._session
        # Where nothing trains, every call is what the job is there for.
        gradients = session.torch.is_grad_enabled() or session.order.infer
        ending, watch = session.ending, session.watch
        # A whole evaluation is nothing to record.
        if gradients and (ending.waits_for_a_call or (watch is not None and watch.waits_for_a_call)):
            if not session.may_switch_profilers():
                session.called_inside_of_a_record()
            elif ending.waits_for_a_call:
                ending.call_begins()
            elif watch is not None:
                session.guarded("watch", watch.call_begins)
        # In eval mode with gradients a call may train or evaluate: only what follows it tells.
        if gradients:
            session.guarded("forward", self._before, module, args, kwargs)
        ranges = session.ranges
        if ranges is not None:
            ranges.push("forward" if gradients else "evaluation")
        own = thread()
        self._inside.add(own)
        session.busy += 1
        # The compiler traces into a patched `Module.__call__`; inside a root nobody needs it.
        watches_all = session.scene is not None and self._call_patch is not None
        if watches_all:
            self._let_go()
        started = clock()
        try:
            result = call(*args, **kwargs)
        except BaseException as error:
            if watches_all:
                self.watch_again()
            self._inside.discard(own)
            session.busy -= 1
            session.ending.raised(error)
            raise
        ended = clock()
        if watches_all:
            self.watch_again()
        self._inside.discard(own)
        session.busy -= 1
        if "forward" not in session.failed:
            try:
                batch = args[0] if args else next(iter(kwargs.values()), None)
                if not hasattr(batch, "untyped_storage"):
                    batch = _first_tensor(args, kwargs)
                shape = tuple(batch.shape) if batch is not None else None
                real = batch is None or batch.dtype.is_floating_point
                batch_facts = (gradients, module.training or session.order.infer, shape, real, own)
                event = ("forward", started, ended, number, *batch_facts)
                if gradients:
                    self._evaluations.over()
                    session.log.add(event)
                else:
                    self._evaluations.called(event)
                if gradients and session.pairing is not None:
                    session.guarded("pairing", session.pairing.returned, result)
                if gradients and (ranges is not None or session.detailed or session.inspection is not None):
                    self._after(module, args, kwargs, result)
            except Exception as error:  # noqa: BLE001 - observing never breaks a job
                session.fail("forward", error)
        if ranges is not None:
            ranges.pop()
        if session.calls is not None:
            session.guarded("calls", self._inferred, module, result, ended)
        return result

    def _inferred(self, module: Any, result: Any, ended: int) -> None:
        session = self._session
        if session.guarding is not None:
            session.guarded("guarding", session.guarding.inferred, module, result)
        if session.calls is not None:
            session.calls.ended(module, ended)

    def _before(self, module: Any, args: Any, kwargs: Any) -> None:
        session = self._session
        is_new = id(module) not in self._trained
        if is_new and self._trained and next(module.parameters(), None) is None:
            return  # a loss, as a rule: what it gets is what the model made
        if is_new:
            self._trained[id(module)] = module
        if session.turn is not None:
            turn, session.turn = session.turn, None
            session.guarded("turn", turn.wait)
        if session.pairing is not None:
            session.guarded("pairing", session.pairing.called, module, args, kwargs)
        if session.habits is not None:
            session.guarded("habits", session.habits.called, args, kwargs)
        if is_new:
            self._begin(module)
        if session.detailed:
            session.gpu.mark("forward")

    def _begin(self, root: Any) -> None:
        """The first training call of a root: what must be there before it runs."""
        session = self._session
        if session.calls is not None:
            session.guarded("calls", session.calls.begins, root)
        trains = any(parameter.requires_grad or session.order.infer for parameter in root.parameters())
        if session.guarding is not None and trains:
            session.guarded("guarding", session.guarding.begin, root)
        if session.scene is not None and trains:
            seat = session.scene.sit(root)
            if seat is not None:
                self._seats_with_levers.append(seat)

    def _after(self, module: Any, args: Any, kwargs: Any, result: Any) -> None:
        session = self._session
        if session.detailed:
            session.gpu.mark("loss")
        if session.ranges is not None:
            session.ranges.start("loss")
        if session.inspection is not None:
            session.guarded("inspection", session.inspection.called, module, args, kwargs, result)


def _first_tensor(args: Any, kwargs: Any) -> Any:
    for value in (*args, *kwargs.values()):
        if hasattr(value, "untyped_storage"):
            return value
    return None


def _size(module: Any, optimized: set[int]) -> int:
    return sum(int(parameter.numel()) for parameter in module.parameters() if id(parameter) in optimized)
