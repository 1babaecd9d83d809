"""Whether a backward pass is still to come: what it needs lies where the next replay of a CUDA graph writes.

One for all models of a job, since their graphs share memory. A call whose result the script drops has no
backward pass any more.
"""

import contextlib
import weakref
from typing import Any

from flatout.levers.lever import Broken
from flatout.levers.outputs import map_tensors


class Pending:
    """The backward pass of the last call; of none before the first."""

    def __init__(self) -> None:
        self._last: _Pass | None = None

    def refuse(self) -> None:
        """Raise Broken where another replay would write over what is still needed."""
        if self._last is not None and self._last.is_to_come():
            raise Broken(
                "compile",
                "models are called again before the backward pass of the last call, and CUDA graphs write "
                "over what that needs",
            )

    def called(self, result: Any) -> None:
        """The backward pass through this is to come, if any is."""
        nodes: dict[int, Any] = {}

        def look(tensor: Any) -> Any:
            if tensor.grad_fn is not None:
                nodes[id(tensor.grad_fn)] = tensor.grad_fn
            return tensor

        map_tensors(look, result)
        self._last = _Pass(list(nodes.values())) if nodes else None

    def forget(self) -> None:
        """An update was made of what the call had read: nothing goes back through it any more."""
        self._last = None


class _Pass:
    """Through one of these nodes at least; what one graph returns has one node for all of it."""

    def __init__(self, nodes: list[Any]) -> None:
        self._begun = False
        self._nodes: list[weakref.ref[Any]] = []
        for node in nodes:
            node.register_prehook(self._begins)
            with contextlib.suppress(TypeError):  # none of the compiler's
                self._nodes.append(weakref.ref(node))

    def _begins(self, _gradients: Any) -> None:
        self._begun = True

    def is_to_come(self) -> bool:
        return not self._begun and any(node() is not None for node in self._nodes)
