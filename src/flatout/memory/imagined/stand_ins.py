"""Stand-ins for what only a real device has: torch.cuda, compiled code, and what torch chooses by device."""

import collections
import contextlib
import sys
import types
import weakref
from typing import Any

from flatout.memory.imagined.ledger import Ledger
from flatout.memory.imagined.scratch import MULTIPROCESSORS, THREADS_PER_MULTIPROCESSOR

_OPTIMIZERS = (
    *("adam", "adamw", "sgd", "rmsprop", "adagrad", "nadam", "radam", "adadelta", "adamax", "asgd", "rprop"),
)

_NAME, _CAPABILITY = "an imagined GPU", (9, 0)
# What it says that it has. No request is ever refused.
_MEMORY_BYTES = 80 << 30

_CHOICE = "_default_to_fused_or_foreach"


class _Idle:
    """A stream or an event on which nothing happens."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _answering({"elapsed_time": 0.0, "is_capturing": False}.get(name, True))

    def __enter__(self) -> "_Idle":
        return self

    def __exit__(self, *_error: object) -> None:
        return None


def stand_in(torch: Any, moving: list[int], ledger: Ledger) -> None:
    """Put all of them in place, for as long as the process lives."""
    _cuda(torch)
    _accelerator(torch)
    _generators(torch)
    _modules(torch, moving)
    _precision(torch)
    _values(torch)
    torch.compile = _as_written(ledger)
    for owner, name in (
        (torch._C, "_accelerator_setAllocatorSettings"),  # noqa: SLF001
        (torch.cuda.memory, "_set_allocator_settings"),
    ):
        setattr(owner, name, ledger.set_allocator)
    torch.save = _answering(None)  # there is nothing to be saved
    for name in _OPTIMIZERS:
        module = sys.modules.get(f"torch.optim.{name}")
        if module is not None and hasattr(module, _CHOICE):
            # On CUDA, where the script does not choose, whole lists of tensors are updated at once.
            setattr(module, _CHOICE, lambda *_args, **_kwargs: (False, True))


def _cuda(torch: Any) -> None:
    cuda = torch.cuda
    properties = types.SimpleNamespace(
        name=_NAME,
        major=_CAPABILITY[0],
        minor=_CAPABILITY[1],
        total_memory=_MEMORY_BYTES,
        multi_processor_count=MULTIPROCESSORS,
        max_threads_per_multi_processor=THREADS_PER_MULTIPROCESSOR,
        warp_size=32,
        gcnArchName="",
        is_integrated=0,
        is_multi_gpu_board=0,
        uuid="",
    )
    answers: dict[str, Any] = {
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "current_device": 0,
        "is_bf16_supported": True,
        "is_current_stream_capturing": False,
        "get_device_name": _NAME,
        "get_device_capability": _CAPABILITY,
        "get_device_properties": properties,
        "can_device_access_peer": False,
        "mem_get_info": (_MEMORY_BYTES, _MEMORY_BYTES),
        "memory_summary": "",
        "memory_stats": collections.defaultdict(int),
        "memory_snapshot": [],
        **dict.fromkeys(("utilization", "memory_usage", "temperature", "power_draw", "clock_rate"), 0),
        "initial_seed": 0,
        "get_sync_debug_mode": 0,
        "memory_allocated": 0,
        "max_memory_allocated": 0,
        "memory_reserved": 0,
        "max_memory_reserved": 0,
        "get_rng_state": None,
        "get_rng_state_all": [None],
    }
    _answers(cuda, answers)
    _answers(cuda.nvtx, dict.fromkeys(("range_push", "range_pop", "range_start", "range_end", "mark"), 0))
    idle = (
        *(
            "init",
            "synchronize",
            "set_device",
            "manual_seed",
            "manual_seed_all",
            "seed",
            "seed_all",
            "ipc_collect",
        ),
        *("empty_cache", "reset_peak_memory_stats", "reset_max_memory_allocated", "set_rng_state"),
        *("reset_accumulated_memory_stats", "set_rng_state_all"),
        *("set_per_process_memory_fraction", "set_stream", "set_sync_debug_mode"),
    )
    _answers(cuda, dict.fromkeys(idle))
    cuda.Stream = cuda.Event = _Idle
    torch.Tensor.record_stream = _answering(None)  # its streams are not torch's
    cuda.current_stream = cuda.default_stream = _answering(_Idle())
    cuda.stream = cuda.device = lambda *_args, **_kwargs: contextlib.nullcontext()


def _accelerator(torch: Any) -> None:
    """The same, by its newer name."""
    accelerator, cuda = torch.accelerator, torch.cuda
    answers = {
        "is_available": True,
        "device_count": 1,
        "current_accelerator": torch.device("cuda"),
        "current_device_index": 0,
        "current_device_idx": 0,
        **dict.fromkeys(("set_device_index", "set_device_idx")),
    }
    _answers(accelerator, answers)
    for name in (
        *(
            "synchronize",
            "current_stream",
            "set_stream",
            "empty_cache",
            "memory_allocated",
            "memory_reserved",
        ),
        *("max_memory_allocated", "max_memory_reserved", "memory_stats", "reset_peak_memory_stats"),
        "reset_accumulated_memory_stats",
    ):
        setattr(accelerator, name, getattr(cuda, name))
    accelerator.device_index = cuda.device
    # A library that looks at where weights lie, and wants to arrange them for its own kernels.
    torch.backends.cudnn.is_acceptable = _answering(False)


def _generators(torch: Any) -> None:
    """Whatever device they are made for."""

    class Generator(torch.Generator):  # type: ignore[misc]
        def __new__(cls, device: Any = None) -> Any:  # noqa: ARG004 - there is but one
            return super().__new__(cls, "cpu")

        def __init__(self, device: Any = None) -> None:
            """Made already."""

    torch.Generator = Generator


def _answers(module: Any, answers: dict[str, Any]) -> None:
    for name, value in answers.items():
        setattr(module, name, _answering(value))


def _answering(value: Any) -> Any:
    return lambda *_args, **_kwargs: value


def _modules(torch: Any, moving: list[int]) -> None:
    """`Module._apply` swaps parameters, which fake ones do not bear; moved as they are, they need not be."""
    # Parameters that were converted, by what they were: those that are tied stay so, and none is kept alive.
    converted: dict[int, tuple[weakref.ref[Any], weakref.ref[Any]]] = {}

    def known(parameter: Any) -> Any:
        was, now = converted.get(id(parameter), (None, None))
        return now() if was is not None and now is not None and was() is parameter else None

    def _apply(module: Any, fn: Any, recurse: bool = True) -> Any:
        if recurse:
            for child in module.children():
                child._apply(fn)  # noqa: SLF001
        moving[0] += 1
        try:
            for name, parameter in module._parameters.items():  # noqa: SLF001
                if parameter is None:
                    continue
                other = known(parameter)
                if other is None:
                    with torch.no_grad():
                        new = fn(parameter)
                    if new.untyped_storage() is parameter.untyped_storage():
                        continue
                    other = torch.nn.Parameter(new, parameter.requires_grad)
                    converted[id(parameter)] = (weakref.ref(parameter), weakref.ref(other))
                module._parameters[name] = other  # noqa: SLF001
            for name, buffer in module._buffers.items():  # noqa: SLF001
                if buffer is not None:
                    module._buffers[name] = fn(buffer)  # noqa: SLF001
        finally:
            moving[0] -= 1
        return module

    torch.nn.Module._apply = _apply  # noqa: SLF001


def _precision(torch: Any) -> None:
    real = torch.autocast.__init__

    def __init__(self: Any, device_type: str, dtype: Any = None, **more: Any) -> None:  # noqa: N807
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        real(self, device_type, dtype=dtype, **more)

    torch.autocast.__init__ = __init__
    # No gradient is ever infinite here.
    torch.amp.GradScaler._maybe_opt_step = (  # noqa: SLF001
        lambda _scaler, optimizer, _state, *args, **kwargs: optimizer.step(*args, **kwargs)
    )


def _values(torch: Any) -> None:
    """Numbers in place of those that are not there."""
    tensor = torch.Tensor

    def __format__(self: Any, spec: str) -> str:  # noqa: N807
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)

    def tolist(self: Any) -> Any:
        values: Any = self.item() if self.dim() == 0 else [one.tolist() for one in self]
        return values

    def numpy(self: Any, **_more: Any) -> Any:
        kind = str(self.dtype).removeprefix("torch.").replace("bfloat16", "float32")
        return np.ones(tuple(self.shape), kind)

    import numpy as np

    tensor.__format__, tensor.tolist, tensor.numpy = __format__, tolist, numpy
    tensor.__array__ = lambda self, *_more: numpy(self)


def _as_written(ledger: Ledger) -> Any:
    """What is to be compiled stays what it is, and that is noted."""

    def compile(model: Any = None, **_options: Any) -> Any:  # noqa: A001 - it is called so
        ledger.guess("compile")
        return model if model is not None else (lambda function: function)

    return compile
