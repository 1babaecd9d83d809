"""What the baseline showed of a job, as levers need it to know whether they apply and what they give."""

import dataclasses
from collections.abc import Mapping
from typing import Any

# Of float32, more than its last bit: errors of a sum grow with the root of its terms, which are thousands.
_ROUNDOFFS = {"fp32": 2.0**-17, "tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-9, "float64": 2.0**-46}
# Of a measured peak: what the products of whole training steps reach. Those of float32 are slow enough that
# nothing else holds them up; on tensor cores, sizes and what lies between the products do. Read off the
# baselines and plans of GPTs of 124 M and 1.3 B parameters on an H200 (benchmarks/results).
_IN_TRAINING = {"tf32": 0.6, "bf16": 0.75, "fp16": 0.75, "fp8": 0.67}
# Something else is always there.
_MOST_OF_A_STEP = 0.95


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobFacts:
    """Facts of one job on one device. Shares are of the step; what is not known is None or empty."""

    device: str = "cpu"
    # CUDA compute capability.
    capability: tuple[int, int] | None = None
    step_ms: float = 0.0
    # Share of the step by part, on the host and (where events were recorded) on the device.
    host_shares: Mapping[str, float] = dataclasses.field(default_factory=dict)
    device_shares: Mapping[str, float] = dataclasses.field(default_factory=dict)
    # Share of the time in which some kernel ran.
    busy_share: float | None = None
    # On each of the devices.
    flops_per_step: float | None = None
    # Products per second by dtype, as measured on this device, else as such devices reach of the rated peak.
    peaks: Mapping[str, float] = dataclasses.field(default_factory=dict)
    micro_batches: float = 1.0
    # What the session learned of the script's own ways (`inside/habits.py`).
    habits: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    loaders: tuple[Mapping[str, Any], ...] = ()
    ranks: int = 1

    @property
    def on_gpu(self) -> bool:
        """Whether it trains on a CUDA device."""
        return self.device.startswith("cuda")

    def habit(self, name: str, default: Any = None) -> Any:
        """One fact of the script's ways."""
        return self.habits.get(name, default)

    @property
    def products_dtype(self) -> str:
        """In what the products are computed now."""
        if self.habit("autocast"):
            return str(self.habit("autocast"))
        dtype = str(self.habit("parameter_dtype", "float32"))
        if dtype == "float32" and self.on_gpu and (self.habit("tf32") or self._convolves_in_tf32):
            return "tf32"
        return {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}.get(dtype, dtype)

    @property
    def _convolves_in_tf32(self) -> bool:
        """Whether it convolves more than it multiplies: that is in TF32 unless the script says otherwise."""
        most = self.habit("convolutions", 0) > self.habit("linears", 0)
        return bool(most and self.habit("convolutions_in_tf32", False))

    @property
    def roundoff(self) -> float:
        """By how much its sums differ, relative to themselves, when they are added up in another order."""
        if self.products_dtype == "fp32" and self.on_gpu and self.habit("convolutions"):
            return _ROUNDOFFS["tf32"]  # torch's default for convolutions, unlike for products
        return _ROUNDOFFS.get(self.products_dtype, _ROUNDOFFS["bf16"])

    def products_share(self, dtype: str) -> float | None:
        """The share of the step that the products would take at the peak of `dtype`; None where unknown."""
        peak = self.peaks.get(dtype)
        if not peak or not self.flops_per_step or not self.step_ms:
            return None
        return min(1.0, self.flops_per_step / peak / (self.step_ms / 1000))

    def rate_in_training(self, dtype: str) -> float | None:
        """Products per second that training reaches in `dtype`; None where the peak is unknown."""
        peak = self.peaks.get(dtype)
        return peak * _IN_TRAINING.get(dtype, 1.0) if peak else None

    def speedup_by_dtype(self, dtype: str) -> float:
        """What faster products alone would give; Amdahl's law over what products reach in both dtypes."""
        before, after = self._products_take(self.products_dtype), self._products_take(dtype)
        if before is None or after is None or after >= before:
            return 1.0
        return 1.0 / (1.0 - before + after)

    def _products_take(self, dtype: str) -> float | None:
        """Likely the share of the step that the products take in `dtype`."""
        rate = self.rate_in_training(dtype)
        if not rate or not self.flops_per_step or not self.step_ms:
            return None
        return min(_MOST_OF_A_STEP, self.flops_per_step / rate / (self.step_ms / 1000))


def amdahl(share: float, factor: float) -> float:
    """A share of the step made `factor` times faster."""
    return 1.0 / (1.0 - share + share / factor)
