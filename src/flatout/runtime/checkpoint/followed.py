"""Which loaders can be followed: torch's, also behind `flatout.prefetch`."""

from collections.abc import Iterator
from typing import Any

from flatout.levers.prefetching import Ahead, Mover, Prefetched, workers_have_one
from flatout.records.errors import CallerMistake


def unwrapped(torch: Any, loader: Any) -> tuple[Any, Any]:
    """The DataLoader, and the device that its batches are to be on; raises CallerMistake for another."""
    device = None
    if isinstance(loader, Prefetched):
        about = vars(loader)
        loader, device = about["_loader"], about["_device"]
    if not isinstance(loader, torch.utils.data.DataLoader):
        kind = type(loader)
        raise CallerMistake(
            f"a loader that is a {kind.__module__}.{kind.__qualname__}",
            expected="a torch.utils.data.DataLoader, or flatout.prefetch of one",
            remedy="hand over the DataLoader, and wrap `checkpointer.loader`; or leave loader out",
        )
    if loader.num_workers > 1 and not getattr(loader, "in_order", True):
        raise CallerMistake(
            "a loader with in_order=False",
            expected="batches in the same order in every life",
            remedy="leave in_order out, or leave loader out: then a pass begins anew after a kill",
        )
    return loader, device


def prefetched(
    torch: Any, device: Any, opened: Iterator[tuple[Any, Any]], batches: Any
) -> Iterator[tuple[Any, Any]]:
    """Batches, each with what came with it, on their device: the next is on its way where it is ready."""
    ready = (lambda: workers_have_one(batches)) if hasattr(batches, "_task_info") else (lambda: False)
    ahead = Ahead(Mover(torch, device), lambda: next(opened), ready)
    end: Any = object()
    while (both := ahead.next_or(end)) is not end:
        yield both
