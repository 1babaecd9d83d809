"""The script's own ways, as levers need to know them: precision, compilation, optimizers, shapes, switches.

Looked at after the first updates, and once more at the end. Patched for it are autocast's door, to see who
goes through, what scales a loss, and what sets the number of threads.
"""

import importlib.metadata
import importlib.util
import os
import shutil
from typing import TYPE_CHECKING, Any

from flatout.inside.batch_uses import BatchUses
from flatout.inside.gradients_left import GradientsLeft
from flatout.inside.repeated_batches import copied, refusal, trains, versions
from flatout.inside.tap import Patch, undo_all, unseen
from flatout.levers import hugging_face, numa
from flatout.levers.allocator import settings_in_the_environment
from flatout.levers.attention_kernels import time_kernels
from flatout.levers.batches import leaves
from flatout.levers.blocks import repeated_blocks
from flatout.levers.compiled_graphs import graphs_compiled
from flatout.levers.float8_layers import suits_float8
from flatout.levers.fused_optimizer import supports_fused
from flatout.levers.linear_cross_entropy import is_large_head
from flatout.levers.places import users_place

if TYPE_CHECKING:
    from flatout.inside.session import Session

# What some levers need, and most environments do not have.
_EXTRAS = ("liger_kernel", "torchao")
_SHORT = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32"}


class HabitsTap:
    """Learns how the script does things."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._patches: list[Patch] = []
        self._autocast = ""
        self._keeps_gradients = False
        self._scales_loss = False
        self._shapes: set[Any] = set()
        self._not_repeatable: str | None = None
        # A batch of which is watched whether the script changes it, and how often its tensors were changed.
        self._watched_batch: tuple[Any, list[int]] | None = None
        # File and line of the user's source, by what happened there.
        self._where: dict[str, Any] = {}
        # Of the device's generator at the last call; True once it was seen to move.
        self._random_state: Any = None
        self._uses = BatchUses(session.torch)
        self._sets_threads = "OMP_NUM_THREADS" in os.environ
        self._chooses_attention = False
        self._attention_ms: dict[str, float] = {}
        self._attention_calls = 0
        self._gradients = GradientsLeft(session.torch)

    def install(self) -> None:
        """See whoever enters autocast, and whoever scales a loss."""
        torch = self._session.torch
        self._patches = [
            Patch(torch.autocast, "__enter__", self._entering(torch.autocast.__enter__)),
            Patch(torch.amp.GradScaler, "scale", self._scaling(torch.amp.GradScaler.scale)),
            Patch(torch, "set_num_threads", self._setting_threads(torch.set_num_threads)),
        ]

    def remove(self) -> None:
        """Put everything back."""
        undo_all(self._patches)

    def called(self, args: Any, kwargs: Any) -> None:
        """A root was called for training, or to infer."""
        self._keeps_gradients = self._keeps_gradients or self._session.torch.is_grad_enabled()
        self._uses.root_called()
        self._chooses_attention = self._chooses_attention or not _all_attention_allowed(self._session.torch)
        if "root_call" not in self._where:
            self._where["root_call"] = users_place(self._session.torch)
        cuda = self._session.torch.cuda
        # While a graph is captured, nobody may ask.
        if self._session.on_gpu and self._random_state is not True and not cuda.is_current_stream_capturing():
            # The host's generator serves loaders too; the device's serves the model alone.
            state = cuda.get_rng_state(self._session.device).tolist()
            if self._random_state is not None and state != self._random_state:
                self._random_state = True
            else:
                self._random_state = state
        if len(self._shapes) <= 16:
            given = leaves([*args, *kwargs.values()])
            self._shapes.add(tuple((path, *tensor.shape) for path, tensor in given))

    def batch_came(self, iterator: Any, batch: Any) -> None:
        """A loader gave the loop a batch."""
        self._uses.came(iterator, batch)
        if self._watched_batch is not None:
            kept, before = self._watched_batch
            self._watched_batch = None
            if versions(kept) != before:
                self._not_repeatable = "the script changes its batches"
        elif self._not_repeatable is None and self._session.updates and trains(self._session):
            self._not_repeatable = refusal(self._session.torch, iterator, batch)
            if not self._not_repeatable:
                kept = copied(self._session.torch, batch)
                self._watched_batch = (kept, versions(kept))

    def backward_begins(self) -> None:
        """What became of the last step's gradients. Two updates are looked at: that waits for the device."""
        if not self._gradients.is_known:
            self._gradients.backward_begins(self._session.updates, self._session.optimizers())

    def optimizer_made(self) -> None:
        """The script made an optimizer; the last one before training counts."""
        if "root_call" not in self._where:
            self._where["optimizer"] = users_place(self._session.torch)

    def time_attention(self, totals: Any) -> None:
        """How long each attention kernel takes for this job's shape, in the precision that suits them all."""
        torch, device = self._session.torch, self._session.device
        self._attention_ms = time_kernels(torch, device, totals.attention, torch.bfloat16)
        self._attention_calls = totals.attentions

    def describe(self, roots: list[Any], optimizers: list[Any]) -> dict[str, Any]:
        """Everything, as plain values."""
        torch = self._session.torch
        modules = [module for root in roots for module in root.modules()]
        parameters = [parameter for root in roots for parameter in root.parameters()]
        dtypes = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in parameters})
        images = [parameter for parameter in parameters if parameter.dim() == 4]
        nn = torch.nn
        return {
            "infers": self._session.order.infer,
            "keeps_gradients": self._keeps_gradients,
            "autocast": self._autocast,
            "scales_loss": self._scales_loss,
            "parameter_dtype": dtypes[0] if len(dtypes) == 1 else ", ".join(dtypes) or "float32",
            # Our own levers are not on in a baseline.
            "compiles": compiles(roots, graphs_compiled()),
            "roots": [type(root).__qualname__ for root in roots],
            "input_shapes": len(self._shapes),
            # Why batches cannot be yielded again while levers take turns; None where no loader was seen.
            "not_repeatable": self._not_repeatable,
            "convolutions": sum(isinstance(module, nn.Conv2d | nn.ConvTranspose2d) for module in modules),
            "linears": sum(isinstance(module, nn.Linear) for module in modules),
            "draws": self._random_state is True or self._draws_on_the_host(modules),
            "channels_last": bool(images)
            and all(one.is_contiguous(memory_format=torch.channels_last) for one in images)
            and not all(one.is_contiguous() for one in images),
            "optimizers": [_optimizer(one) for one in optimizers],
            "float8_layers": sum(suits_float8(torch, module) for module in modules),
            "packages": _packages(),
            "vocabulary": max(
                (module.out_features for module in modules if is_large_head(module, torch)), default=0
            ),
            "numa": numa.describe(torch, self._session.device),
            **hugging_face.describe(roots),
            "repeated_blocks": len(repeated_blocks(torch, roots)),
            "tf32": _tf32(torch),
            "convolutions_in_tf32": _convolutions_in_tf32(torch),
            "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
            "deterministic": bool(torch.backends.cudnn.deterministic)
            or bool(torch.are_deterministic_algorithms_enabled()),
            "anomaly_mode": bool(torch.is_anomaly_enabled()),
            "sync_debug_mode": torch.cuda.get_sync_debug_mode() if torch.cuda.is_initialized() else 0,
            "cpu_bf16": _cpu_computes_in_bf16(torch),
            "cpp_compiler": bool(shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")),
            "threads": torch.get_num_threads(),
            "sets_threads": self._sets_threads,
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "batch_uses": self._uses.describe(),
            "sdpa_kernel": self._chooses_attention,
            "gradients": self._gradients.found() or "",
            "graphs": graphs_compiled(),
            "attention_ms": self._attention_ms,
            "attention_calls": self._attention_calls,
            "allocator_settings": settings_in_the_environment(),
            "where": {name: place for name, place in self._where.items() if place is not None},
            "capability": list(torch.cuda.get_device_capability(self._session.device))
            if self._session.on_gpu
            else None,
        }

    def _draws_on_the_host(self, modules: list[Any]) -> bool:
        nn = self._session.torch.nn
        dropout = any(
            isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0  # noqa: SLF001
            for module in modules
        )
        return dropout or not self._session.on_gpu

    def _entering(self, real: Any) -> Any:
        tap = self

        def __enter__(autocast: Any) -> Any:  # noqa: N807
            if getattr(autocast, "_enabled", False):
                dtype = str(getattr(autocast, "fast_dtype", ""))
                tap._autocast = tap._autocast or _SHORT.get(dtype, dtype)
            return real(autocast)

        return unseen(__enter__)

    def _setting_threads(self, real: Any) -> Any:
        tap = self

        def set_num_threads(number: int) -> None:
            tap._sets_threads = True
            real(number)

        return unseen(set_num_threads)

    def _scaling(self, real: Any) -> Any:
        tap = self

        def scale(scaler: Any, outputs: Any) -> Any:
            tap._scales_loss = tap._scales_loss or scaler.is_enabled()
            return real(scaler, outputs)

        return unseen(scale)


def compiles(roots: list[Any], graphs: int | None) -> bool:
    """Whether the script compiles: one of its models, or whatever became so many graphs."""
    return any("_orig_mod" in vars(root).get("_modules", {}) for root in roots) or bool(graphs)


def _all_attention_allowed(torch: Any) -> bool:
    cuda = torch.backends.cuda
    names = ("flash_sdp_enabled", "mem_efficient_sdp_enabled", "math_sdp_enabled", "cudnn_sdp_enabled")
    return all(getattr(cuda, name, lambda: True)() for name in names)


def _optimizer(optimizer: Any) -> dict[str, Any]:
    group = optimizer.param_groups[0] if optimizer.param_groups else {}
    return {
        "name": type(optimizer).__qualname__,
        "fused": group.get("fused"),
        "foreach": group.get("foreach"),
        "supports_fused": supports_fused(optimizer),
    }


def _packages() -> dict[str, str]:
    """Names and versions of extras that are installed, found without importing them."""
    found = {}
    for name in _EXTRAS:
        if importlib.util.find_spec(name) is not None:
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:  # a folder on the path, not a package of pip's
                found[name] = ""
    return found


def _convolutions_in_tf32(torch: Any) -> bool:
    """As torch does by itself, unlike for products."""
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # the script uses the new names
        return str(torch.backends.cudnn.conv.fp32_precision) in ("tf32", "none")


def _tf32(torch: Any) -> bool:
    try:
        return bool(torch.backends.cuda.matmul.allow_tf32)
    except RuntimeError:  # the script uses the new names
        return str(torch.backends.cuda.matmul.fp32_precision) == "tf32"


def _cpu_computes_in_bf16(torch: Any) -> bool:
    return any(
        bool(getattr(torch.cpu, name, bool)())
        for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported", "is_amx_tile_supported")
    )
