"""The backward tap: time in `backward()`, the loss that it starts from, and the thread that trains."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flatout.inside.tap import Patch, clock, thread, undo_all, unseen
from flatout.levers.autograd_engine import ENGINE

if TYPE_CHECKING:
    from flatout.inside.session import Session


class BackwardTap:
    """Watches the call into autograd's engine that accumulates gradients."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._patches: list[Patch] = []

    def install(self) -> None:
        """Patch the function where `torch.autograd` looks it up."""
        autograd = self._session.torch.autograd
        self._patches = [Patch(autograd, ENGINE, self._watched(getattr(autograd, ENGINE)))]

    def remove(self) -> None:
        """Put the function back."""
        undo_all(self._patches)

    def _watched(self, real: Callable[..., Any]) -> Callable[..., Any]:
        session, loss_of = self._session, self._loss_of
        log, ranges = session.log.add, session.ranges

        @functools.wraps(real)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if not session.watching:
                return real(*args, **kwargs)
            if session.in_backward or not kwargs.get("accumulate_grad", False):
                return real(*args, **kwargs)  # `autograd.grad`, or a pass within a pass
            if session.thread != thread():
                session.thread = thread()
                log(("thread", session.thread))
            loss = loss_of(args)
            if session.detailed:
                session.gpu.mark("backward")
            if ranges is not None:
                ranges.push("backward")
            session.busy += 1
            session.in_backward = True
            started = clock()
            try:
                result = real(*args, **kwargs)
            except BaseException as error:
                session.busy -= 1
                session.in_backward = False
                session.ending.raised(error)
                raise
            ended = clock()
            session.busy -= 1
            session.in_backward = False
            log(("backward", started, ended, loss))
            if ranges is not None:
                ranges.pop()
            session.ending.backward_ended()
            if session.detailed:
                session.gpu.mark("after_backward")
            session.backward_ended(ended)
            return result

        return unseen(backward)

    def _loss_of(self, args: Any) -> Any:
        """The loss as a number, or as a slot that the device will fill; None where there is no single one."""
        session = self._session
        session.ending.backward_begins()
        if session.habits is not None:
            session.guarded("habits", session.habits.backward_begins)
        if "backward" in session.failed:
            return None
        try:
            roots: Any = args[0] if args else ()
            return session.gpu.loss(roots[0]) if len(roots) == 1 else None
        except Exception as error:  # noqa: BLE001 - observing never breaks a job
            session.failed.setdefault("backward", f"{type(error).__name__}: {error}")
            return None
