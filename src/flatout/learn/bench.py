"""Where a lesson measures: torch, a device, a stopwatch, and the limits that are known already."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from flatout.limits.launch import graph_node_seconds, item_seconds, launch_seconds
from flatout.limits.matmul import CannotMultiply, Shape, measure_dtype, why_not
from flatout.limits.memory import measure_memory
from flatout.limits.timing import Stopwatch
from flatout.records.limits import Measured
from flatout.records.rated import Dtype

# One shape that shows a precision's rate well enough for a lesson; `flatout limits` tries several.
_CPU_SHAPES: tuple[Shape, ...] = ((512, 512, 512), (1024, 1024, 1024))
_GPU_SHAPES: tuple[Shape, ...] = ((4096, 4096, 4096), (8192, 8192, 8192))

_BURSTS, _ROUNDS = 5, 15


class BenchOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What the child is told: which lessons, on which device, and what is known of it."""

    lessons: tuple[str, ...]
    device: str
    known: Measured | None = None
    # A folder for what lessons write; whoever gave the order removes it, however this process ends.
    scratch: str


class Bench:
    """Handed to each lesson's `measure`. Limits that are known are not measured again."""

    def __init__(self, order: BenchOrder, say: Callable[[str], None]) -> None:
        self.order = order
        self.device = order.device
        # One line on what is being measured, for the reader who waits.
        self.say = say
        self._rates: dict[Dtype, float | str] = {}

    @functools.cached_property
    def torch(self) -> Any:
        """Imported when a lesson first needs it."""
        self.say("importing torch")
        import torch

        return torch

    @functools.cached_property
    def watch(self) -> Stopwatch:
        """Times calls on the device."""
        return Stopwatch(self.torch, self.device)

    @property
    def scratch(self) -> Path:
        """Where to write files that go with the lesson."""
        return Path(self.order.scratch)

    @property
    def on_cpu(self) -> bool:
        """Whether the CPU is what is measured."""
        return self.device == "cpu"

    @property
    def on_cuda(self) -> bool:
        """Whether CUDA's own tools, graphs above all, can be used (ROCm's torch calls itself so, too)."""
        return self.device.startswith("cuda")

    @contextlib.contextmanager
    def one_core(self) -> Iterator[None]:
        """One thread where the CPU is measured: several wait for each other whenever another program runs."""
        threads = self.torch.get_num_threads()
        if self.on_cpu:
            self.torch.set_num_threads(1)
        try:
            yield
        finally:
            self.torch.set_num_threads(threads)

    def seconds(self, call: Callable[[], object], *, burst_s: float = 0.01, at_most_s: float = 0.4) -> float:
        """Seconds a call: the median of bursts on a device; on the CPU the best, as others only ever add.

        To be called within `one_core`: the CPU's seconds are those that the core worked for us, without those
        that it gave to other programs meanwhile.
        """
        if not self.on_cpu:
            return self.watch.measure(call, burst_s=burst_s, bursts=_BURSTS).median_s
        call()
        once_s = max(_core_seconds(call, 1), 1e-7)
        repeats = int(max(1, burst_s / once_s))
        taken = [once_s]
        end = time.perf_counter() + at_most_s
        while len(taken) < _ROUNDS and time.perf_counter() < end:
            taken.append(_core_seconds(call, repeats))
        return min(taken)

    @property
    def known(self) -> Measured | None:
        """What `flatout limits` has kept of this device."""
        return self.order.known

    @functools.cached_property
    def memory_bytes_per_s(self) -> float:
        """The memory's bandwidth, beyond any cache."""
        if self.known is not None and self.known.memory_bytes_per_s is not None:
            return self.known.memory_bytes_per_s
        self.say("memory bandwidth")
        with self.torch.inference_mode():
            return max(rate for _, rate in measure_memory(self.torch, self.device, self.watch))

    def matmul_rate(self, dtype: Dtype) -> float | str:
        """Operations a second of a large product, or why there is none in this precision."""
        if self.known is not None:
            if dtype in self.known.matmul_flops_per_s:
                return self.known.matmul_flops_per_s[dtype]
            reason = self.known.unknown.get(f"matmul_flops_per_s.{dtype}")
            if reason:
                return reason
        if dtype not in self._rates:
            self.say(f"{dtype} products")
            self._rates[dtype] = self._multiply(dtype)
        return self._rates[dtype]

    def _multiply(self, dtype: Dtype) -> float | str:
        refusal = why_not(self.torch, self.device, dtype)
        if refusal:
            return refusal
        shapes = _CPU_SHAPES if self.on_cpu else _GPU_SHAPES
        try:
            with self.torch.inference_mode():
                found = list(measure_dtype(self.torch, self.device, self.watch, dtype, shapes))
        except CannotMultiply as error:
            return str(error)
        return max(result.flops_per_s for result in found)

    @functools.cached_property
    def launch_s(self) -> float:
        """What the host pays to launch the smallest kernel."""
        return self._cost("launch_s", "launch cost", launch_seconds)

    @functools.cached_property
    def item_s(self) -> float:
        """What reading one number back costs."""
        return self._cost("item_s", "reading a number back", item_seconds)

    @functools.cached_property
    def graph_node_s(self) -> float | None:
        """A kernel's cost in a replayed CUDA graph; None where there are no such graphs."""
        if not self.on_cuda:
            return None
        return self._cost("graph_node_s", "a recorded graph", graph_node_seconds)

    def _cost(self, field: str, words: str, read: Callable[[Any, str, Stopwatch], float]) -> float:
        kept = getattr(self.known, field) if self.known is not None else None
        if kept is not None:
            return float(kept)
        self.say(words)
        with self.torch.inference_mode():
            return read(self.torch, self.device, self.watch)

    def free(self) -> None:
        """Hand memory that torch keeps for later back to the device."""
        kind = self.device.split(":", maxsplit=1)[0]
        if kind in ("cuda", "xpu", "mps"):
            getattr(self.torch, kind).empty_cache()


def _core_seconds(call: Callable[[], object], repeats: int) -> float:
    started = time.thread_time()
    for _ in range(repeats):
        call()
    return (time.thread_time() - started) / repeats
