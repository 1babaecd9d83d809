"""From a module and a way to something that can be called."""

import contextlib
import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch

from flatout.infer.optimizing.calling import Arguments
from flatout.infer.optimizing.captured import Captured, Pool
from flatout.infer.optimizing.switches import has_switches, switched
from flatout.infer.optimizing.ways import Way
from flatout.infer.optimizing.weights import needs_twin, twin
from flatout.levers.capture import fresh
from flatout.memory.splitting import map_tensors

Call = Callable[..., Any]


class Prepared:
    """A module made ready to run one way; for each kind of shapes a compiled function or graph of its own."""

    def __init__(self, module: torch.nn.Module, way: Way, device: torch.device, backend: str = "") -> None:
        self.way = way
        self.module = module
        self._device = device
        # Another compiler than Inductor, for tests.
        self._backend = backend
        self._own = next((one.dtype for one in module.parameters() if one.is_floating_point()), None)
        self._pool: Pool | None = None
        self.inner = twin(module, way) if needs_twin(way) else module
        # For any shapes: all but what is compiled and captured.
        self.eager: Call = self._around(self.inner)

    def compiled(self, mark: Callable[[Any], None] | None = None) -> Call:
        """For calls of one kind of shapes, compiled at the first call; `mark` says which sizes may vary."""
        if not self.way.compile:
            return self.eager
        settings: dict[str, Any] = {"dynamic": None if mark is not None else False}
        if self._backend:
            settings["backend"] = self._backend
        elif self.way.compile == "max-autotune":
            settings["mode"] = "max-autotune-no-cudagraphs"
        if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
            settings["isolate_recompiles"] = True
        return self._around(torch.compile(fresh(self.inner), **settings), mark)

    def captured_too(self, way: Way) -> "Prepared":
        """The same, compiled functions and weights included, for a way that adds a graph to this one."""
        other = copy.copy(self)
        other.way, other._pool = way, None  # noqa: SLF001
        return other

    def captured(self, call: Call, example: Arguments) -> Call:
        """For calls like this one: captured now, where the way says so."""
        if not self.way.cuda_graph:
            return call
        if self._pool is None:
            self._pool = Pool(self._device)
        return Captured(call, example, self._device, self._pool)

    def for_example(self, example: Arguments) -> Call:
        """For calls like this one."""
        call = self.compiled()
        example.copied().of(call)
        return self.captured(call, example)

    def _around(self, inner: Call, mark: Callable[[Any], None] | None = None) -> Call:
        way = self.way
        quiet = torch.inference_mode if way.inference_mode else torch.no_grad
        autocast, casts = way.autocast, way.dtype
        has_own = has_switches(way)
        # As it is, the module is the caller's; any other way was proven without the caller's autocast.
        is_chosen = way != Way()

        def call(*args: Any, **kwargs: Any) -> Any:
            with contextlib.ExitStack() as stack:
                stack.enter_context(quiet())
                if has_own:
                    stack.enter_context(switched(way))
                if autocast is not None:
                    # A graph would go on to read the caller's casts after these are gone.
                    own = torch.autocast(self._device.type, autocast, cache_enabled=not way.cuda_graph)
                    stack.enter_context(own)
                elif is_chosen and torch.is_autocast_enabled(self._device.type):
                    stack.enter_context(torch.autocast(self._device.type, enabled=False))
                if casts is not None or way.channels_last:
                    args, kwargs = map_tensors(self._given, (args, kwargs))
                if mark is not None:
                    mark((args, kwargs))
                out = inner(*args, **kwargs)
                return map_tensors(self._returned, out) if casts is not None or autocast is not None else out

        return call

    def _given(self, tensor: Any) -> Any:
        if not tensor.is_floating_point():
            return tensor
        if self.way.channels_last and tensor.dim() == 4:
            return tensor.to(self.way.dtype or tensor.dtype, memory_format=torch.channels_last)
        return tensor.to(self.way.dtype) if self.way.dtype is not None else tensor

    def _returned(self, tensor: Any) -> Any:
        lower = self.way.dtype or self.way.autocast
        return tensor.to(self._own) if tensor.dtype == lower and self._own is not None else tensor
