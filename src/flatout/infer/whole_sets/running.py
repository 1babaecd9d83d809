"""A model over a data set: what lies there already is kept, the rest is computed, in order."""

import contextlib
import dataclasses
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate

from flatout.infer.whole_sets.choosing import best_size
from flatout.infer.whole_sets.computing import Computing
from flatout.infer.whole_sets.counting import Expected
from flatout.infer.whole_sets.identity import identity
from flatout.infer.whole_sets.reading import length_of, loader_from
from flatout.infer.whole_sets.shards import Shards, read_index, read_shard
from flatout.infer.whole_sets.writing import ToFunction, Writer
from flatout.levers.batches import map_leaves
from flatout.levers.prefetching import Prefetched
from flatout.records.errors import CallerMistake, UnknownName
from flatout.records.lock import folder_lock
from flatout.records.whole_set import FORMATS, Format, Made

# Samples of a shard, about: enough that files are few, and little enough to be computed again.
_SHARD_SAMPLES = 4096
_MOST_WORKERS = 8

Function = Callable[[int, dict[str, torch.Tensor]], Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wish:
    """What the caller wants."""

    module: Any
    dataset: Any
    out: Any
    batch_size: int | None
    workers: int | None
    inputs: Callable[[Any], Any] | None
    collate: Callable[[list[Any]], Any] | None
    format: Format
    shard_samples: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class WholeSet:
    """What came of it. `samples` are all that have outputs now; `computed` those of this run."""

    folder: Path | None
    samples: int
    computed: int
    batch_size: int
    # Samples at a time since memory ran out; None where it never did.
    part_size: int | None
    took_s: float

    @property
    def samples_per_s(self) -> float:
        """Samples that this run computed in a second, reading and writing included."""
        return self.computed / self.took_s if self.took_s > 0 else 0.0

    def shards(self) -> Iterator[dict[str, torch.Tensor]]:
        """The outputs by name, shard after shard, read from the folder."""
        index = read_index(self.folder) if self.folder is not None else None
        for shard in index.shards if index is not None else ():
            assert self.folder is not None
            assert index is not None
            yield read_shard(self.folder, shard, index)

    def output(self, name: str = "output") -> torch.Tensor:
        """One output of all samples, as one tensor."""
        return torch.cat([shard[name] for shard in self.shards()])


def run_over(wish: Wish) -> WholeSet:
    """All samples; those whose outputs are kept already are not computed again."""
    _check(wish)
    began = time.monotonic()
    with _in_eval(wish.module):
        if callable(wish.out):
            return _over(wish, None, began)
        folder = Path(wish.out)
        folder.mkdir(parents=True, exist_ok=True)
        with folder_lock(folder):
            return _over(wish, folder, began)


def _over(wish: Wish, folder: Path | None, began: float) -> WholeSet:
    device = _device_of(wish.module)
    found = read_index(folder) if folder is not None else None
    computing = Computing(wish.module, wish.inputs, device, found.part_size if found is not None else None)
    total = length_of(wish.dataset)
    size = wish.batch_size or (found.made.batch_size if found is not None else None)
    if size is None:
        sample, wish = _first_sample(wish, total)
        size = 1 if sample is None else _chosen(wish, sample, computing, device, total)
    # Whole batches: a run that is resumed then computes the very same ones.
    shard_samples = -(-(wish.shard_samples or _SHARD_SAMPLES) // size) * size
    sink: Shards | ToFunction
    if folder is None:
        sink, first = ToFunction(wish.out), 0
        shard_samples = size
    else:
        made = Made(
            model=identity(
                wish.module, (wish.inputs, wish.collate), wish.dataset, total, _workers(wish, device)
            ),
            batch_size=size,
            shard_samples=shard_samples,
            format=wish.format,
            samples=total,
        )
        sink = Shards(folder, made)
        first = sink.index.samples
    is_complete = isinstance(sink, Shards) and sink.index.is_complete and (total is None or first == total)
    computed = 0 if is_complete else _work(wish, computing, sink, device, size, shard_samples, first, total)
    if isinstance(sink, Shards) and not sink.index.is_complete:
        sink.complete()
    return WholeSet(
        folder=folder,
        samples=first + computed,
        computed=computed,
        batch_size=size,
        part_size=computing.part_size,
        took_s=time.monotonic() - began,
    )


def _work(
    wish: Wish,
    computing: Computing,
    sink: Shards | ToFunction,
    device: torch.device,
    size: int,
    shard_samples: int,
    first: int,
    total: int | None,
) -> int:
    loader = loader_from(
        wish.dataset,
        first,
        batch_size=size,
        workers=_workers(wish, device),
        collate=wish.collate,
        pinned=device.type == "cuda",
    )
    writer = Writer(sink, shard_samples, device)
    computed = 0
    try:
        with _progress(first, total) as step:
            expected = Expected(size, None if total is None else total - first)
            for batch in Prefetched(loader, device):
                made = computing.outputs(batch)
                expected.heard([next(iter(outputs.values())).shape[0] for outputs in made])
                for outputs in made:
                    writer.put(outputs, computing.part_size)
                    count = next(iter(outputs.values())).shape[0]
                    computed += count
                    step(count)
        writer.finish()
    except BaseException:
        writer.abandon()
        raise
    return computed


def _workers(wish: Wish, device: torch.device) -> int:
    if wish.workers is not None:
        return wish.workers
    # On a CPU, workers would take the cores that compute.
    if device.type == "cpu":
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(_MOST_WORKERS, max(1, cores // 2))


def _first_sample(wish: Wish, total: int | None) -> tuple[Any, Wish]:
    """The first sample, None where there is none; and the wish, in which it is still to come."""
    if total is not None:
        return (wish.dataset[0] if total else None), wish
    samples = iter(wish.dataset)
    sample = next(samples, None)
    if samples is wish.dataset and sample is not None:
        # It can be read once, and has given its first sample away.
        wish = dataclasses.replace(wish, dataset=itertools.chain([sample], samples))
    return sample, wish


def _chosen(wish: Wish, sample: Any, computing: Computing, device: torch.device, total: int | None) -> int:
    """By trying, with the first sample again and again: reading is not what is timed."""
    collate = wish.collate or default_collate

    def batch(size: int) -> Any:
        return map_leaves(lambda _path, one: one.to(device), collate([sample] * size))

    return best_size(computing, batch, device, most=total or 1 << 16)


def _device_of(module: Any) -> torch.device:
    tensors = [*module.parameters(), *module.buffers()] if hasattr(module, "parameters") else []
    return tensors[0].device if tensors else torch.device("cpu")


@contextlib.contextmanager
def _in_eval(module: Any) -> Iterator[None]:
    parts = [one for one in module.modules() if one.training] if hasattr(module, "modules") else []
    for part in parts:
        part.training = False
    try:
        yield
    finally:
        for part in parts:
            part.training = True


@contextlib.contextmanager
def _progress(done: int, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal; nothing when piped."""
    if not sys.stderr.isatty():
        yield lambda _count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("samples", total=total, completed=done)
        yield lambda count: bar.advance(task, count)


def _check(wish: Wish) -> None:
    if wish.format not in FORMATS:
        raise UnknownName("format", wish.format, FORMATS)
    for name, value, least in (
        ("batch_size", wish.batch_size, 1),
        ("workers", wish.workers, 0),
        ("shard_samples", wish.shard_samples, 1),
    ):
        if value is not None and value < least:
            raise CallerMistake(
                f"{name}={value}", expected=f"a number of {least} or more", remedy=f"leave {name} out"
            )
    if not callable(wish.module):
        raise CallerMistake(
            f"{type(wish.module).__name__} cannot be called",
            expected="a module, or what flatout.optimize made of one",
            remedy="flatout.batch_inference(module, dataset, out='outputs')",
        )
    if isinstance(wish.dataset, DataLoader):
        raise CallerMistake(
            "the data set is a DataLoader, whose batches would be taken for samples",
            expected="the data set itself: batches are made here",
            remedy="give its data set: loader.dataset (and collate_fn=loader.collate_fn, if it has its own)",
        )
