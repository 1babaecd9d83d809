"""What no dispatch mode sees: CUDA graphs, Triton kernels, threads of others, and waits for a device."""

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator
from typing import Any

from flatout.inside.tap import Patch


class BlindSpots:
    """Names what no mode sees: CUDA graphs replayed, Triton kernels, threads of `DataParallel`."""

    def __init__(self, torch: Any, note: Any) -> None:
        self._note = note
        self._thread = threading.local()
        triton = sys.modules.get("triton.runtime.jit")
        self._patches = [
            self._watch(owner, method, name)
            for owner, method, name in (
                (torch.cuda.CUDAGraph, "replay", "cuda_graph::replay"),
                (torch.nn.DataParallel, "parallel_apply", "data_parallel::parallel_apply"),
                (getattr(triton, "JITFunction", None), "run", "triton::{}"),
            )
            if hasattr(owner, method)
        ]

    def remove(self) -> None:
        """Stop watching."""
        for patch in self._patches:
            patch.undo()

    @contextlib.contextmanager
    def looked_after(self) -> Iterator[None]:
        """An operator that has been judged runs: the kernels that it launches are its own."""
        outer, self._thread.judged = getattr(self._thread, "judged", False), True
        try:
            yield
        finally:
            self._thread.judged = outer

    def _watch(self, owner: Any, method: str, name: str) -> Patch:
        real = getattr(owner, method)

        @functools.wraps(real)
        def watched(itself: Any, *args: Any, **kwargs: Any) -> Any:
            if not getattr(self._thread, "judged", False):
                self._note(name.format(getattr(itself, "__name__", "kernel")))
            return real(itself, *args, **kwargs)

        return Patch(owner, method, watched)


class Waits:
    """Sees waits for a device that are no operator."""

    def __init__(self, torch: Any, called: Any) -> None:
        self._called = called
        self._patches = [
            self._watch(owner, method, name)
            for owner, method, name in (
                (torch.cuda, "synchronize", "cuda::synchronize"),
                (torch.cuda.Stream, "synchronize", "cuda::stream_synchronize"),
                (torch.cuda.Event, "synchronize", "cuda::event_synchronize"),
            )
        ]

    def remove(self) -> None:
        """Stop watching."""
        for patch in self._patches:
            patch.undo()

    def _watch(self, owner: Any, method: str, name: str) -> Patch:
        real = getattr(owner, method)

        @functools.wraps(real)
        def watched(*args: Any, **kwargs: Any) -> Any:
            self._called(name)
            return real(*args, **kwargs)

        return Patch(owner, method, watched)
