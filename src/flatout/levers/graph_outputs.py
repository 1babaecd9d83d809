"""Outputs of a CUDA graph lie where its next replay writes: which of them may a script be given as they are?

`out = model(x)` gives them up in time: the old `out` is of no use when the next one is made. A list of
outputs, a second name or a view does not. Small outputs are always copied out. Large ones are copied in the
first calls, to see what becomes of them: a script that still has one two calls later gets copies for good.
Where one is held by more than one name later on, when the next step begins, no graph may be replayed again.
"""

import dataclasses
import sys
import weakref
from typing import Any

from flatout.levers.lever import Broken, Call
from flatout.levers.outputs import map_tensors, memory_of
from flatout.levers.pending import Pending

# Losses that a script collects.
_SMALL_BYTES = 1 << 20
# Calls in which everything is copied: graphs are warmed up, recorded, and replayed in the last of them.
_WATCHED = 4


class GraphOutputs:
    """The call of a model that replays CUDA graphs; its outputs stay as they are for as long as needed."""

    def __init__(self, torch: Any, compiled: Call, pending: Pending | None = None) -> None:
        self._torch = torch
        self._compiled = compiled
        self._pending = pending or Pending()
        self._lent: list[Lent] = []
        # Of the first calls: the memory of the copies that the script got.
        self._given: list[list[Any]] = []
        # Of the first calls: the outputs themselves. What is dead while graphs are recorded must be dead at
        # every replay, and later the script holds them until its backward pass is over.
        self._alive: list[Any] = []
        # By output: how it is held when the script has no name for it. torch keeps tensors of its own over a
        # graph's memory from one replay to the next.
        self._nobody: list[Held] = []
        # Set for good once a script was seen to keep what it was given.
        self.copies_all = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One call; raises Broken, before anything is overwritten that the script or autograd still needs."""
        self._alive.clear()
        self._pending.refuse()
        found = [lent.held() for lent in self._lent]
        if len(self._given) < _WATCHED:
            return self._call_and_watch(args, kwargs)
        if not self._nobody:
            self._nobody = found
        elif any(now.is_more_than_one_name(then) for now, then in zip(found, self._nobody, strict=False)):
            raise Broken("compile", "the script keeps an output, which lies where CUDA graphs write")
        return map_tensors(self._keep, self._replayed(args, kwargs))

    def _call_and_watch(self, args: Any, kwargs: Any) -> Any:
        if any(not memory.expired() for given in self._given[:-1] for memory in given):
            self.copies_all = True
        given: list[Any] = []

        def copied(tensor: Any) -> Any:
            copy = _copy(tensor)
            if copy.nbytes > _SMALL_BYTES:
                self._lent.append(Lent(self._torch, tensor))
                self._alive.append(tensor)
                given.append(memory_of(copy))
            return copy

        result = map_tensors(copied, self._replayed(args, kwargs))
        self._given.append(given)
        return result

    def _replayed(self, args: Any, kwargs: Any) -> Any:
        self._lent.clear()
        self._torch.compiler.cudagraph_mark_step_begin()
        result = self._compiled(*args, **kwargs)
        self._pending.called(result)
        return result

    def release(self) -> None:
        """It is not called any more: hold nothing."""
        for held in (self._alive, self._lent, self._given, self._nobody):
            held.clear()

    def _keep(self, tensor: Any) -> Any:
        if self.copies_all or tensor.nbytes <= _SMALL_BYTES:
            return _copy(tensor)
        self._lent.append(Lent(self._torch, tensor))
        return tensor


@dataclasses.dataclass(frozen=True)
class Held:
    """By how many a tensor and its memory are held; a tensor that is gone by none."""

    references: int
    uses: int

    def is_more_than_one_name(self, nobody: "Held") -> bool:
        """Whether that is more than what is there when nobody holds it, and one name."""
        # A name brings a tensor back that is gone when nobody has it, and with it one more use of its memory.
        back = bool(self.references and not nobody.references)
        return self.references > max(nobody.references, _ALIVE) + 1 or self.uses > nobody.uses + back


# The variable in which `held` has it, and the argument of getrefcount.
_ALIVE = 2


class Lent:
    """An output that lies in a graph's memory."""

    def __init__(self, torch: Any, tensor: Any) -> None:
        self._uses = torch._C._storage_Use_Count  # noqa: SLF001
        self._tensor = weakref.ref(tensor)
        self._storage = memory_of(tensor)

    def held(self) -> Held:
        """By how many it is held now."""
        if self._storage.expired():
            return Held(0, 0)
        uses = self._uses(self._storage.cdata)
        tensor = self._tensor()
        return Held(sys.getrefcount(tensor) if tensor is not None else 0, uses)


def _copy(tensor: Any) -> Any:
    """A copy; of a tensor that repeats itself, of what it repeats."""
    repeats = [place for place, stride in enumerate(tensor.stride()) if not stride]
    if not repeats:
        return tensor.clone()
    shape = tensor.shape
    for place in repeats:
        tensor = tensor.narrow(place, 0, min(1, shape[place]))
    return tensor.clone().expand(shape)
