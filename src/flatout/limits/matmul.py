"""Matrix products per precision: several shapes on random data, the best kept, small ones shown too."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from flatout.limits.timing import Stopwatch
from flatout.records.limits import MatmulResult
from flatout.records.rated import Dtype

Shape = tuple[int, int, int]
GPU_SHAPES: tuple[Shape, ...] = (
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (16384, 8192, 8192),
)
CPU_SHAPES: tuple[Shape, ...] = ((512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048))
GPU_DTYPES: tuple[Dtype, ...] = ("fp32", "tf32", "fp16", "bf16", "fp8", "int8")
CPU_DTYPES: tuple[Dtype, ...] = ("fp32", "bf16", "int8")
SUSTAINED_DTYPES: frozenset[Dtype] = frozenset({"tf32", "fp16", "bf16", "fp8"})

# Products that take longer than this are skipped: a slow device must not make the user wait.
_SLOWEST_CALL_S = 0.4
_POWER_BOUND_SIZE = 4096


@dataclasses.dataclass(frozen=True)
class _Schedule:
    burst_s: float
    bursts: int
    rest_s: float


# Large products pull the card to its power limit within some 20 ms: short bursts, real rests.
_LARGE = _Schedule(burst_s=0.012, bursts=5, rest_s=0.06)
_SMALL = _Schedule(burst_s=0.005, bursts=5, rest_s=0.01)
_ON_CPU = _Schedule(burst_s=0.1, bursts=5, rest_s=0.0)


class CannotMultiply(Exception):
    """This device or torch has no product in this precision; the message says why."""


def product(torch: Any, device: str, dtype: Dtype, shape: Shape) -> Callable[[], object]:
    """A call that multiplies random M x K by K x N in `dtype`, ready to be timed."""
    m, n, k = shape
    if dtype == "int8":
        left = torch.randint(-128, 127, (m, k), device=device, dtype=torch.int8)
        right = torch.randint(-128, 127, (n, k), device=device, dtype=torch.int8).t()
        return lambda: torch._int_mm(left, right)  # noqa: SLF001 - torch has no public int8 product
    if dtype == "fp8":
        return _fp8_product(torch, device, shape)
    if dtype in ("fp32", "tf32"):
        _set_tf32(torch, device, allowed=dtype == "tf32")
    kind = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[
        dtype
    ]
    left = torch.randn(m, k, device=device).to(kind)
    right = torch.randn(k, n, device=device).to(kind)
    out = torch.empty(m, n, device=device, dtype=kind)
    return lambda: torch.mm(left, right, out=out)


def _fp8_product(torch: Any, device: str, shape: Shape) -> Callable[[], object]:
    m, n, k = shape
    # AMD's MI300 has its own encoding of e4m3; everything else uses the common one.
    name = "float8_e4m3fnuz" if _arch(torch, device).startswith("gfx94") else "float8_e4m3fn"
    kind = getattr(torch, name)
    left = torch.randn(m, k, device=device).to(kind)
    right = torch.randn(n, k, device=device).to(kind).t()
    one = torch.ones((), device=device)

    def call() -> object:
        return torch._scaled_mm(  # noqa: SLF001 - the product that torchao and the compiler use
            left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16
        )

    return call


def _arch(torch: Any, device: str) -> str:
    if not device.startswith("cuda"):
        return ""
    return str(getattr(torch.cuda.get_device_properties(device), "gcnArchName", ""))


def _set_tf32(torch: Any, device: str, *, allowed: bool) -> None:
    if not device.startswith("cuda"):
        return
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):
        matmul.fp32_precision = "tf32" if allowed else "ieee"
    else:
        matmul.allow_tf32 = allowed


def why_not(torch: Any, device: str, dtype: Dtype) -> str:
    """Why this precision is not measured here; empty when it is."""
    if device.startswith("cuda") and not getattr(torch.version, "hip", None):
        capability = torch.cuda.get_device_capability(device)
        needed = {"tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9), "int8": (7, 5), "fp16": (7, 0)}.get(dtype)
        if needed and capability < needed:
            have = ".".join(map(str, capability))
            return f"no tensor cores for {dtype} at compute capability {have}"
    elif dtype == "tf32":
        return "torch offers TF32 on NVIDIA's cards only"
    elif dtype in ("fp8", "int8") and not device.startswith(("cuda", "cpu")):
        return f"torch has no {dtype} product on {device}"
    return ""


def measure_dtype(
    torch: Any, device: str, watch: Stopwatch, dtype: Dtype, shapes: tuple[Shape, ...]
) -> Iterator[MatmulResult]:
    """Results shape by shape, small to large; stops where the next would take too long or not fit."""
    rate = 0.0
    for shape in shapes:
        operations = 2.0 * shape[0] * shape[1] * shape[2]
        if rate and operations / rate > _SLOWEST_CALL_S:
            return
        try:
            call = product(torch, device, dtype, shape)
            schedule = _schedule(watch, shape)
            timing = watch.measure(
                call, burst_s=schedule.burst_s, bursts=schedule.bursts, rest_s=schedule.rest_s
            )
        except (RuntimeError, NotImplementedError, AttributeError) as error:
            if rate:
                return  # the smaller shapes stand
            raise CannotMultiply(_first_line(error)) from error
        rate = operations / timing.median_s
        m, n, k = shape
        yield MatmulResult(dtype=dtype, m=m, n=n, k=k, flops_per_s=rate, spread_share=timing.spread_share)


def sustained(torch: Any, device: str, watch: Stopwatch, best: MatmulResult, seconds: float) -> float:
    """Operations a second when the best product runs on and on."""
    call = product(torch, device, best.dtype, (best.m, best.n, best.k))
    return 2.0 * best.m * best.n * best.k / watch.sustain(call, seconds=seconds)


def _schedule(watch: Stopwatch, shape: Shape) -> _Schedule:
    if watch.on_cpu:
        return _ON_CPU
    return _LARGE if min(shape) >= _POWER_BOUND_SIZE else _SMALL


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
