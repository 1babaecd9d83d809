"""A prepared module for calls of all shapes: those it was made for, those padded to one, and the rest."""

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from flatout.infer.buckets import Fitting, Size
from flatout.infer.failing import words_of
from flatout.infer.optimizing.calling import Arguments, key_of
from flatout.infer.optimizing.preparing import Prepared
from flatout.memory.splitting import tensors_of

Call = Callable[..., Any]

# Looks of calls that are remembered.
_MOST_KEYS = 4096
# Functions that are compiled for one shape each, where one for all sizes of a batch is not possible.
_MOST_STATIC = 6


class Shapes:
    """Finds the way for each call. Compiled functions share nothing: the compiler's limits are never near."""

    def __init__(
        self,
        prepared: Prepared,
        example: Arguments,
        run: Call,
        fitting: Fitting | None,
        batches: Sequence[int],
        lengths: Sequence[int],
        *,
        cuts: bool = True,
    ) -> None:
        self._prepared = prepared
        self._example = example
        self._fitting = fitting
        self._batches, self._lengths = sorted(batches), sorted(lengths)
        # Whether larger batches may be answered part by part.
        self._cuts = cuts
        self._lock = threading.RLock()
        self._by_key: dict[Any, Call] = {key_of(example.args, example.kwargs): run}
        self._by_size: dict[Size, Call] = {}
        # By length: one function for batches of two and more.
        self._for_any_batch: dict[int, Call | None] = {}
        self._static = 0
        if fitting is not None:
            size = fitting.size_of(example.args, example.kwargs)
            if size is not None:
                self._by_size[size] = run
        # Calls that no shape fitted: they ran without what is compiled.
        self.as_written = 0
        self.padded = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module answers, the fastest way that there is for such a call."""
        key = key_of(args, kwargs)
        if key is None:
            return self._without(*args, **kwargs)
        run = self._by_key.get(key) or self._found(key, Arguments(args, kwargs))
        return run(*args, **kwargs)

    def prepare(self) -> None:
        """Make all sizes ready now; they are otherwise when they are first needed."""
        if self._fitting is None:
            return
        own = self._fitting.size_of(self._example.args, self._example.kwargs) or (1, 0)
        for length in self._lengths or [own[1]]:
            for samples in self._batches:
                small = self._fitting.parts(self._example.copied(), min(samples, own[0]), own[0])[0]
                with self._lock:
                    self._for_size((samples, length), self._fitting.shortened(small, length))

    def _found(self, key: Any, call: Arguments) -> Call:
        with self._lock:
            run = self._new(call)
            if len(self._by_key) >= _MOST_KEYS:
                self._by_key.pop(next(iter(self._by_key)))
            self._by_key[key] = run
            return run

    def _new(self, call: Arguments) -> Call:
        size = self._fitting.size_of(call.args, call.kwargs) if self._fitting is not None else None
        bucket = self._bucket(size) if size is not None else None
        if self._fitting is None or size is None or bucket is None:
            return self._without
        if size[0] > bucket[0]:
            if not self._cuts:
                return self._without
            return lambda *args, **kwargs: self._in_parts(Arguments(args, kwargs), bucket[0], size[0])
        run = self._for_size(bucket, call)
        if run is None:
            return self._without
        if bucket == size:
            return run
        fitting = self._fitting

        def padded(*args: Any, **kwargs: Any) -> Any:
            self.padded += 1
            wider = fitting.padded(Arguments(args, kwargs), bucket)
            return fitting.cut(wider.of(run), size)

        return padded

    def _without(self, *args: Any, **kwargs: Any) -> Any:
        self.as_written += 1
        return self._prepared.eager(*args, **kwargs)

    def _in_parts(self, call: Arguments, most: int, samples: int) -> Any:
        """More samples than the largest size has: one after the other."""
        assert self._fitting is not None
        parts = self._fitting.parts(call, most, samples)
        return self._fitting.joined([self(*one.args, **one.kwargs) for one in parts])

    def _bucket(self, size: Size) -> Size | None:
        """The smallest one that has room; the largest batch for what must be cut."""
        length = size[1]
        if self._lengths and length:
            length = next((one for one in self._lengths if one >= length), 0)
            if not length:
                return None
        elif self._fitting is not None and size[1]:
            own = self._fitting.size_of(self._example.args, self._example.kwargs)
            if own is None or own[1] != size[1]:
                return None
        if not self._batches:
            return None
        return next((one for one in self._batches if one >= size[0]), self._batches[-1]), length

    def _for_size(self, bucket: Size, call: Arguments) -> Call | None:
        """A function for calls of exactly this size; None where there can be none."""
        assert self._fitting is not None
        if bucket in self._by_size:
            return self._by_size[bucket]
        example = self._fitting.padded(call.copied(), bucket)
        run = self._any_batch(bucket, example) if bucket[0] > 1 else None
        run = run or self._for_one(example)
        if run is None:
            return None
        try:
            run = self._prepared.captured(run, example)
        except Exception as error:  # noqa: BLE001 - it runs without a graph, and the next call does not try anew
            warnings.warn(
                f"flatout.optimize: calls of {bucket[0]} samples run without a CUDA graph: {words_of(error)}",
                stacklevel=2,
            )
        self._by_size[bucket] = run
        return run

    def _any_batch(self, bucket: Size, example: Arguments) -> Call | None:
        """One that is compiled once for all sizes of a batch; None where the module insists on one."""
        length = bucket[1]
        if length in self._for_any_batch:
            return self._for_any_batch[length]
        samples = bucket[0]
        run = self._prepared.compiled(mark=lambda given: _mark(given, samples))
        try:
            example.copied().of(run)
        except Exception:  # noqa: BLE001 - sizes that the code computes with: each gets a function of its own
            self._for_any_batch[length] = None
        else:
            self._for_any_batch[length] = run
        return self._for_any_batch[length]

    def _for_one(self, example: Arguments) -> Call | None:
        if self._static >= _MOST_STATIC:
            return None
        self._static += 1
        run = self._prepared.compiled()
        example.copied().of(run)
        return run


def _mark(given: Any, samples: int) -> None:
    for tensor in tensors_of(given):
        if tensor.dim() and tensor.shape[0] == samples:
            torch._dynamo.mark_dynamic(tensor, 0)  # noqa: SLF001
