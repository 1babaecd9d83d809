"""A DataLoader made anew with other settings: it yields the same batches, in the same order."""

from typing import Any

from flatout.inside.overrides import refusal_of_workers

# What it is made anew with, beside its data set, sampler and batch size.
_KEPT = (
    *("collate_fn", "timeout", "worker_init_fn", "generator", "pin_memory", "num_workers"),
    *("multiprocessing_context", "prefetch_factor", "persistent_workers", "pin_memory_device", "in_order"),
)


def loader_with(loader: Any, settings: dict[str, Any]) -> tuple[Any, str]:
    """The loader with these settings: the same data set, sampler and collation; or why it stays."""
    from torch.utils.data import DataLoader, IterableDataset

    if type(loader) is not DataLoader:
        return loader, f"{type(loader).__qualname__} is no plain DataLoader"
    refusal = refusal_of_workers(loader.dataset, settings.get("num_workers", 0), loader.num_workers)
    if refusal:
        return loader, refusal
    same = {name: getattr(loader, name) for name in _KEPT if hasattr(loader, name)}
    if loader.batch_size is None and loader.batch_sampler is not None:
        same["batch_sampler"] = loader.batch_sampler  # of the user's own
    else:
        same |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
        if not isinstance(loader.dataset, IterableDataset):
            same["sampler"] = loader.sampler
    wanted = {**same, **settings}
    if not wanted.get("num_workers"):
        for name in ("persistent_workers", "prefetch_factor", "multiprocessing_context"):
            wanted.pop(name, None)
    return DataLoader(loader.dataset, **wanted), ""
