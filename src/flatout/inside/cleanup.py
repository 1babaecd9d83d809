"""Gives cached memory back before an evaluation, where the device is nearly full.

Batches of an evaluation have other shapes: what training left in the cache fits them badly, and what is in
pieces cannot be given back later. Only between training and evaluation: in the loop it would cost more than
it gives.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flatout.inside.session import Session

# Of the device's memory: with more than this free there is no need, with less than that cached no use.
_ENOUGH_FREE = 0.1
_WORTH = 0.05


class CleanupTap:
    """Told when a model that trains is about to be evaluated; `facts` say what that has given."""

    def __init__(self, session: "Session") -> None:
        self._session = session

    def install(self) -> None:
        """Nothing to patch: the forward tap sees models change their mode."""

    def remove(self) -> None:
        """Nothing to put back."""

    def before_evaluation(self) -> None:
        """Give back what is cached, where it is much and little is free."""
        session = self._session
        if not session.on_gpu:
            return
        cuda, device = session.torch.cuda, session.device
        free, total = cuda.mem_get_info(device)
        cached = cuda.memory_reserved(device) - cuda.memory_allocated(device)
        if free > _ENOUGH_FREE * total or cached < _WORTH * total:
            return
        cuda.empty_cache()
        now, _ = cuda.mem_get_info(device)
        done = session.facts.setdefault("cleanups", {"evaluations": 0, "freed_bytes": 0})
        done["evaluations"] += 1
        done["freed_bytes"] += max(0, now - free)
