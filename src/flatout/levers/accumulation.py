"""Whether gradients are added up over several calls of a model: CUDA graphs would write over the first ones.

A measured baseline shows it, but a run may have other arguments than its plan. Seen by a second call that
trains with no update in between, once a backward pass has left gradients.
"""

from typing import Any

from flatout.levers.lever import Broken, Call

# Parameters that are looked at: one of them may get no gradient.
_LOOKED_AT = 8


class Accumulation:
    """Stands around a call that replays CUDA graphs, and ends that before anything is overwritten."""

    def __init__(self, root: Any, call: Call) -> None:
        trained = [one for one in root.parameters() if one.requires_grad]
        self._sample = trained[:: max(1, len(trained) // _LOOKED_AT)]
        self._call = call
        # What gradients there were at the last call; None where there was an update since.
        self._had: list[tuple[int, int] | None] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One call; raises Broken where the last one's gradients still wait for their update."""
        has = [_mark(one.grad) for one in self._sample]
        if self._had is not None and has != self._had and any(has):
            raise Broken(
                "compile", "gradients are added up over several calls, and CUDA graphs write over them"
            )
        self._had = has
        return self._call(*args, **kwargs)

    def updated(self) -> None:
        """An optimizer has made an update."""
        self._had = None


def _mark(gradient: Any) -> tuple[int, int] | None:
    return None if gradient is None else (id(gradient), gradient._version)  # noqa: SLF001
