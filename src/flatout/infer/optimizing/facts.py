"""What a module and its inputs are, as far as levers ask."""

import dataclasses

import torch

from flatout.infer.optimizing.calling import Arguments
from flatout.infer.optimizing.twins import Seen
from flatout.infer.optimizing.ways import Precision
from flatout.memory.splitting import samples_in
from flatout.records.errors import CallerMistake

_AMPERE = (8, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """Device, dtype, and what a call is made of."""

    device: torch.device
    dtype: torch.dtype
    samples: int | None
    has_images: bool
    has_attention: bool
    precisions: tuple[Precision, ...]
    # Another compiler than Inductor, for tests.
    backend: str = ""

    @property
    def on_gpu(self) -> bool:
        """On CUDA, where graphs and events are."""
        return self.device.type == "cuda"


@torch.no_grad()
def facts_of(module: torch.nn.Module, example: Arguments, backend: str = "") -> Facts:
    """Look at one call."""
    device = _device(module, example)
    floats = [one.dtype for one in (*module.parameters(), *module.buffers()) if one.is_floating_point()]
    dtype = floats[0] if floats else torch.float32
    seen = Seen()
    try:
        with seen:
            example.copied().of(module)
    except Exception:  # noqa: BLE001 - some calls cannot be looked into; what is wrong with others shows below
        example.copied().of(module)
        seen.has_images = any(isinstance(one, torch.nn.Conv2d) for one in module.modules())
    try:
        samples = samples_in((example.args, example.kwargs))
    except CallerMistake:
        samples = None
    return Facts(
        device=device,
        dtype=dtype,
        samples=samples,
        has_images=seen.has_images,
        has_attention=any("scaled_dot_product" in name for name in seen.names),
        precisions=_precisions(device, dtype, has_weights=bool(floats)),
        backend=backend,
    )


def _device(module: torch.nn.Module, example: Arguments) -> torch.device:
    tensors = [*module.parameters(), *module.buffers(), *example.tensors()]
    return next((one.device for one in tensors if one.device.type != "cpu"), torch.device("cpu"))


def _precisions(device: torch.device, dtype: torch.dtype, *, has_weights: bool) -> tuple[Precision, ...]:
    """Those to try, the mildest first; a module in lower precision stays as its owner made it."""
    if dtype != torch.float32 or not has_weights:
        return ()
    if device.type != "cuda":
        return ("bf16-autocast", "bf16-weights")
    if torch.cuda.get_device_capability(device) >= _AMPERE:
        return ("tf32", "bf16-autocast", "bf16-weights", "fp16-autocast", "fp16-weights")
    return ("fp16-autocast", "fp16-weights")
