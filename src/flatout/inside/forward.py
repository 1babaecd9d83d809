"""The forward tap: finds the root modules, then takes a seat on each to time its calls.

`Module.__call__` is patched only until the roots are known: the compiler traces into it. From then on each
root carries the seat in `_compiled_call_impl`, which state_dict, pickle and deepcopy leave behind.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flatout.inside.tap import Patch

if TYPE_CHECKING:
    from flatout.inside.session import Session

_SEAT = "_compiled_call_impl"


class ForwardTap:
    """Times the outermost call of the model; evaluation is told from training by gradients."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._patch: Patch | None = None
        self._depth = 0
        self._roots: dict[int, Any] = {}
        self._seats: list[tuple[Any, Any]] = []

    def install(self) -> None:
        """Watch every module call until the first update shows which ones train."""
        module = self._session.torch.nn.Module
        self._patch = Patch(module, "__call__", self._watched(module.__call__))

    def remove(self) -> None:
        """Leave the seats and the class as they were found."""
        if self._patch is not None:
            self._patch.undo()
        for root, seat in self._seats:
            if root.__dict__.get(_SEAT) is seat:
                root.__dict__.pop(_SEAT)
        self._seats = []

    def settle(self) -> None:
        """The first update is done: take the seats and let go of the class."""
        if self._patch is None:
            return
        self._patch.undo()
        self._patch = None
        roots, self._roots = self._roots, {}
        for root in roots.values():
            # A module that the script compiled has its own way of being called; it is left alone.
            if root.__dict__.get(_SEAT) is None and not hasattr(root, "_orig_mod"):
                seat = self._seat(root._call_impl)  # noqa: SLF001
                root.__dict__[_SEAT] = seat
                self._seats.append((root, seat))

    def _watched(self, real: Callable[..., Any]) -> Callable[..., Any]:
        is_compiling = self._session.torch.compiler.is_compiling
        tap = self

        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            # The compiler folds this into a constant, and sees nothing else of us.
            if is_compiling() or tap._depth:
                return real(module, *args, **kwargs)
            if tap._trains(module):
                tap._roots[id(module)] = module
            return tap._time(module, lambda: real(module, *args, **kwargs), args, kwargs)

        return __call__

    def _seat(self, call: Callable[..., Any]) -> Callable[..., Any]:
        tap = self
        module = call.__self__  # type: ignore[attr-defined]

        def seat(*args: Any, **kwargs: Any) -> Any:
            if tap._depth:
                return call(*args, **kwargs)
            return tap._time(module, lambda: call(*args, **kwargs), args, kwargs)

        return seat

    def _time(self, module: Any, call: Callable[[], Any], args: Any, kwargs: Any) -> Any:
        self._depth += 1
        started = time.perf_counter_ns()
        try:
            return call()
        finally:
            self._depth -= 1
            if "forward" not in self._session.failed:
                try:
                    self._note(module, time.perf_counter_ns() - started, args, kwargs)
                except Exception as error:  # noqa: BLE001 - observing never breaks a job
                    self._session.fail("forward", error)

    def _trains(self, module: Any) -> bool:
        return bool(module.training) and bool(self._session.torch.is_grad_enabled())

    def _note(self, module: Any, took_ns: int, args: Any, kwargs: Any) -> None:
        draft = self._session.draft
        if not self._trains(module):
            draft.evaluation_ns += took_ns
            draft.evaluations += 1
            return
        draft.forward_ns += took_ns
        draft.forwards += 1
        first = next((value for value in (*args, *kwargs.values()) if hasattr(value, "shape")), None)
        if first is not None and len(first.shape) > 0:
            draft.samples += int(first.shape[0])
