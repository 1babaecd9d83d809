"""How fast a step could be on this device: every operator at its limit, and as if all were fused."""

from collections.abc import Mapping, Sequence
from typing import Any

from flatout.records.profile import Floors, ProductShape

# What the kinds of numbers are called where peaks are kept.
_PEAKS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float64": "fp64"}
_FLOAT8 = "fp8"
# Tensor cores take rows of 16 bytes: so many numbers each.
_NUMBERS = {"float32": 4, "bfloat16": 8, "float16": 8}
_NUMBERS_OF_FLOAT8 = 16
_SHAPES_AT_MOST = 40


def floors(
    counted: Mapping[str, Any],
    holds: Mapping[str, int],
    peaks: Mapping[str, float],
    bytes_per_s: float | None,
    *,
    tf32: bool,
    of_counted: float = 1.0,
) -> Floors:
    """From the operators of a counted step, what the job holds, and the device's limits.

    `of_counted` is how large a mean step is beside that one.
    """
    moves = counted.get("moves") or ()
    if not moves:
        return _unknown("the operators of a step were not seen")
    if not bytes_per_s:
        return _unknown("the device's memory bandwidth is not known: flatout limits")
    whole, products_s, moving_s = 0.0, 0.0, 0.0
    for _, flops, moved, dtype, calls in moves:
        peak = peaks.get(_peak_name(dtype, tf32=tf32))
        if flops and not peak:
            return _unknown(f"the peak of {dtype or 'its numbers'} is not known: flatout limits")
        needs_s = of_counted * calls * max(flops / peak if flops and peak else 0.0, moved / bytes_per_s)
        whole += needs_s
        if flops:
            products_s += needs_s
        else:
            moving_s += needs_s
    update_s = _update_bytes(holds) / bytes_per_s
    return Floors(
        as_written_ms=1000 * (whole + update_s),
        fused_ms=1000 * (products_s + update_s),
        moving_share=moving_s / (whole + update_s) if whole else 0.0,
    )


def _unknown(reason: str) -> Floors:
    return Floors(unknown=dict.fromkeys(("as_written_ms", "fused_ms", "moving_share"), reason))


def _peak_name(dtype: str, *, tf32: bool) -> str:
    if dtype == "float32" and tf32:
        return "tf32"
    return _FLOAT8 if dtype.startswith("float8") else _PEAKS.get(dtype, dtype)


def _update_bytes(holds: Mapping[str, int]) -> int:
    """An update reads parameters, gradients and the optimizer's own, and writes all but the gradients."""
    own = holds.get("parameter_bytes", 0) + holds.get("optimizer_bytes", 0)
    return 2 * own + holds.get("gradient_bytes", 0)


def product_shapes(counted: Mapping[str, Any]) -> tuple[ProductShape, ...]:
    """The shapes of a step's products, those with most operations first."""
    rows: Sequence[Any] = counted.get("products") or ()
    works = [2.0 * batch * m * n * k * calls for _, _, batch, m, n, k, calls in rows]
    total = sum(works) or 1.0
    found = sorted(zip(works, rows, strict=True), key=lambda one: -one[0])[:_SHAPES_AT_MOST]
    return tuple(
        ProductShape(
            operator=operator,
            dtype=dtype,
            batch=batch,
            m=m,
            n=n,
            k=k,
            calls=calls,
            share=work / total,
            pad=_pad(dtype, n=n, k=k),
        )
        for work, (operator, dtype, batch, m, n, k, calls) in found
    )


def _pad(dtype: str, **sizes: int) -> dict[str, int]:
    """Sizes that are no whole rows for tensor cores; `m` is the batch's own, and seldom in anybody's hand."""
    numbers = _NUMBERS_OF_FLOAT8 if dtype.startswith("float8") else _NUMBERS.get(dtype)
    if numbers is None:
        return {}
    return {
        name: -(-size // numbers) * numbers
        for name, size in sizes.items()
        if size % numbers and size > numbers
    }
