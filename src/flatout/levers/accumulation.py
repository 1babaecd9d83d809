"""Whether gradients are added up over several calls of a model: CUDA graphs would write over the first ones.

A measured baseline shows it, but a run may have other arguments than its plan. Seen by a second call that
trains with no update in between, once a backward pass has left gradients.
"""

import weakref
from typing import Any

from flatout.levers.lever import Broken, Call

# Parameters that are looked at: one of them may get no gradient.
_LOOKED_AT = 8


class Accumulation:
    """Stands around a call that replays CUDA graphs, and ends that before anything is overwritten."""

    def __init__(self, root: Any, call: Call) -> None:
        self._sample = sample_of(root)
        self._call = call
        # Optimizers that update these.
        self._own: weakref.WeakSet[Any] = weakref.WeakSet()
        # What gradients there were at the last call; None where there was an update since.
        self._had: list[tuple[int, int] | None] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One call; raises Broken where the last one's gradients still wait for their update."""
        has = marks_of(self._sample)
        if self._had is not None and has != self._had and any(has):
            raise Broken(
                "compile", "gradients are added up over several calls, and CUDA graphs write over them"
            )
        self._had = has
        return self._call(*args, **kwargs)

    def updated(self, optimizer: Any) -> bool:
        """An optimizer has made an update; whether of this model."""
        is_own = optimizer in self._own or self._is_updated_by(optimizer)
        if is_own:
            self._own.add(optimizer)
            self.forget()
        return is_own

    def forget(self) -> None:
        """What gradients there are is of no matter to the next call."""
        self._had = None

    def _is_updated_by(self, optimizer: Any) -> bool:
        held = {id(one) for group in optimizer.param_groups for one in group["params"]}
        return any(id(one) in held for one in self._sample)


def sample_of(module: Any) -> list[Any]:
    """Some of what is trained in it."""
    trained = [one for one in module.parameters() if one.requires_grad]
    return trained[:: max(1, len(trained) // _LOOKED_AT)]


def marks_of(parameters: list[Any]) -> list[tuple[int, int] | None]:
    """Of each its gradient's identity and version: others once a backward pass has added to it."""
    gradients = [one.grad for one in parameters]
    return [None if one is None else (id(one), one._version) for one in gradients]  # noqa: SLF001
