"""A way of running a module: which levers are on, and how much rounding each brings."""

import dataclasses
from typing import Literal

import torch

Precision = Literal[
    "", "tf32", "bf16-autocast", "bf16-weights", "fp16-autocast", "fp16-weights", "int8-weights",
    "int4-weights", "fp8-weights",
]  # fmt: skip
Compile = Literal["", "default", "max-autotune"]

# Half of what the last bit counts, relative to a number.
ROUNDOFF = {
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
}
TF32_ROUNDOFF = 2.0**-11
# The same sum in another order, or by another algorithm (Winograd's), is off by more than one rounding.
REORDERED = 2.0**6
# Levers that change numbers by more than rounding: only where they are allowed.
QUANTIZED: tuple[Precision, ...] = ("int8-weights", "int4-weights", "fp8-weights")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Way:
    """Which levers are on; nothing is the module as it is, without gradients."""

    inference_mode: bool = False
    precision: Precision = ""
    channels_last: bool = False
    # The attention kernel that comes first.
    attention: str = ""
    cudnn_autotune: bool = False
    compile: Compile = ""
    cuda_graph: bool = False

    def names(self) -> tuple[str, ...]:
        """What is on, in words that the report uses."""
        words = {
            "inference-mode": self.inference_mode,
            self.precision: self.precision,
            "channels-last": self.channels_last,
            f"attention:{self.attention}": self.attention,
            "cudnn-autotune": self.cudnn_autotune,
            ("compile" if self.compile == "default" else f"compile:{self.compile}"): self.compile,
            "cuda-graph": self.cuda_graph,
        }
        return tuple(name for name, is_on in words.items() if is_on)

    @property
    def dtype(self) -> torch.dtype | None:
        """What weights and inputs are cast to; quantized weights work with bfloat16 beside them."""
        if self.precision in ("bf16-weights", *QUANTIZED):
            return torch.bfloat16
        return torch.float16 if self.precision == "fp16-weights" else None

    @property
    def autocast(self) -> torch.dtype | None:
        """What products are cast to as they come."""
        kinds = {"bf16-autocast": torch.bfloat16, "fp16-autocast": torch.float16}
        return kinds.get(self.precision)

    def roundoff(self, own: torch.dtype) -> float:
        """What one operation of this way may be off by, for a module whose weights have this dtype."""
        least = ROUNDOFF.get(own, ROUNDOFF[torch.float32])
        if own in (torch.float32, torch.float64):
            least *= REORDERED
        if self.precision == "tf32":
            return max(least, TF32_ROUNDOFF)
        lower = self.dtype or self.autocast
        return max(least, ROUNDOFF[lower]) if lower is not None else least

    @property
    def depends_on_shapes(self) -> bool:
        """Whether it is made for the shapes of one call."""
        return bool(self.compile) or self.cuda_graph
