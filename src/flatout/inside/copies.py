"""The copies tap: what the training loop moves to the device, through `.to`, `.cuda` and `copy_`.

Only calls of the loop itself count, not those inside the model, the optimizer or a loader. On a machine
without a GPU a call counts when it really made a copy.
"""

import functools
from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any

from flatout.inside.tap import Patch, clock, thread, undo_all, unseen

if TYPE_CHECKING:
    from flatout.inside.session import Session

_METHODS = ("to", "cuda", "copy_")
# Copies smaller than this are counters and scalars.
_SMALLEST_BYTES = 64


class _Replacement:
    """A method of Tensor that is watched, and equal to the real one wherever somebody compares the two.

    Kinds of tensors (torchvision's, and others) keep sets of methods that they treat in ways of their own,
    and torch tells them which was called by what Tensor has at that moment: before, while or after we watch.
    """

    def __init__(
        self, real: Callable[..., Any], watched: Callable[..., Any], is_compiling: Callable[[], bool]
    ) -> None:
        functools.update_wrapper(self, real)
        self._real = real
        self._name = real.__name__
        self._watched = watched
        self._is_compiling = is_compiling

    def __get__(self, tensor: Any, kind: Any = None) -> Any:
        return self if tensor is None else MethodType(self._watched, tensor)

    @unseen
    def __call__(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """From inside of a kind of tensor, as a rule: the call that led there is the one that counts."""
        if self._is_compiling():  # it knows a tensor's methods by their names
            return getattr(tensor, self._name)(*args, **kwargs)
        return self._real(tensor, *args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return self._real == (other._real if isinstance(other, _Replacement) else other)

    def __hash__(self) -> int:
        return hash(self._real)


class CopiesTap:
    """Logs host time and bytes of copies; the device's share comes from events."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._patches: list[Patch] = []

    def install(self) -> None:
        """Patch the three methods of Tensor."""
        tensor = self._session.torch.Tensor
        for name in _METHODS:
            real = getattr(tensor, name)
            watched = self._watched(real, name == "copy_")
            replacement = _Replacement(real, watched, self._session.torch.compiler.is_compiling)
            self._patches.append(Patch(tensor, name, replacement))

    def remove(self) -> None:
        """Put the methods back."""
        undo_all(self._patches)

    def _watched(self, real: Callable[..., Any], in_place: bool) -> Callable[..., Any]:
        session, note = self._session, self._note
        is_compiling = session.torch.compiler.is_compiling
        ranges = session.ranges

        @functools.wraps(real)
        def method(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            # The compiler folds the first test into a constant, and sees nothing else of us.
            if is_compiling() or not session.watching or session.busy:
                return real(tensor, *args, **kwargs)
            if session.thread and session.thread != thread():
                return real(tensor, *args, **kwargs)
            if session.detailed:
                session.gpu.mark("copy")
            if ranges is not None:
                ranges.push("copy")
            started = clock()
            try:
                result = real(tensor, *args, **kwargs)
            finally:
                ended = clock()
                if ranges is not None:
                    ranges.pop()
            if session.detailed:
                session.gpu.mark("between")
            source = tensor
            if in_place:
                source = args[0] if args else kwargs.get("other")
            if result is not source:
                session.guarded("copies", note, started, ended, source, result, in_place)
            return result

        return unseen(method)

    def _note(self, started: int, ended: int, source: Any, result: Any, in_place: bool) -> None:
        if getattr(source, "device", None) is None:
            return
        if result.device == source.device:
            # A change of type on the device is work, not a transfer.
            if self._session.on_gpu or result.device.type != "cpu":
                return
            if not in_place and result.data_ptr() == source.data_ptr():
                return
        size = source.nbytes
        if size >= _SMALLEST_BYTES:
            self._session.log.add(("copy", started, ended, size, thread()))
