"""Model FLOPs utilization: counted operations, over the step's time, over a peak that is named."""

from typing import Any

from flatout.records.limits import Limits, RatedPeaks
from flatout.records.profile import Mfu
from flatout.records.rated import Dtype


def mfu(
    flops: dict[str, Any] | None,
    reason: str,
    step_s: float | None,
    *,
    devices: int,
    on_cpu: bool,
    rated: RatedPeaks | None,
    rated_reason: str,
    limits: Limits | None,
    limits_reason: str,
    made_fp8: bool = False,
) -> Mfu:
    """MFU against the rated and the measured peak of `devices` devices.

    Operations are counted as written; `made_fp8` says that a lever lets them be computed in float8.
    """
    known = {*(rated.dense_flops_per_s if rated is not None else ())}
    known |= {*(limits.measured.matmul_flops_per_s if limits is not None else ())}
    dtype: Dtype = "fp32" if on_cpu else _peak_dtype(flops or {}, known, made_fp8=made_fp8)
    rated_peak = rated.dense_flops_per_s.get(dtype) if rated is not None else None
    measured_peak = limits.measured.matmul_flops_per_s.get(dtype) if limits is not None else None
    unknown: dict[str, str] = {}
    if rated_peak is None:
        unknown["of_rated"] = unknown["rated_flops_per_s"] = rated_reason or f"no rated {dtype} peak"
    if measured_peak is None:
        unknown["of_measured"] = unknown["measured_flops_per_s"] = (
            limits_reason or f"{dtype} was not measured"
        )
    if flops is None or not flops["flops"] or step_s is None:
        if flops is not None and not flops["flops"]:
            reason = "the step has no operation that counts as model work"
        reason = reason or "no steady step time"
        return Mfu(
            of_rated=None,
            of_measured=None,
            peak_dtype=dtype,
            flops_per_step=flops["flops"] if flops is not None else None,
            of_counted=(flops or {}).get("of_counted", 1.0),
            reason=reason,
            rated_flops_per_s=rated_peak,
            measured_flops_per_s=measured_peak,
            unknown={**unknown, "of_rated": reason, "of_measured": reason},
        )
    rate = flops["flops"] / step_s / devices
    of_rated = rate / rated_peak if rated_peak else None
    of_measured = rate / measured_peak if measured_peak else None
    if (of_rated is not None and of_rated > 1) or (of_measured is not None and of_measured > 1):
        reason = "refused: the count or the peak must be wrong, for it comes out above 100 %"
        over = {"of_rated": of_rated, "of_measured": of_measured}
        unknown |= {name: reason for name, value in over.items() if value is not None and value > 1}
        of_rated = of_rated if of_rated is not None and of_rated <= 1 else None
        of_measured = of_measured if of_measured is not None and of_measured <= 1 else None
    return Mfu(
        of_rated=of_rated,
        of_measured=of_measured,
        peak_dtype=dtype,
        flops_per_step=flops["flops"],
        of_counted=flops.get("of_counted", 1.0),
        recomputed_flops_per_step=flops.get("recomputed_flops", 0),
        rated_flops_per_s=rated_peak,
        rated_source=rated.source if rated is not None else "",
        measured_flops_per_s=measured_peak,
        uncounted_operators=flops.get("uncounted", {}),
        reason=reason,
        unknown=unknown,
    )


def _peak_dtype(flops: dict[str, Any], known: set[Dtype], *, made_fp8: bool) -> Dtype:
    """fp8 for jobs that compute most of it so, bf16 for all others; on cards without it, fp16."""
    work, in_fp8 = 0, 0
    for _, each, _, dtype, calls in flops.get("moves") or ():
        work += each * calls
        in_fp8 += each * calls if dtype.startswith("float8") else 0
    if "fp8" in known and (made_fp8 or 2 * in_fp8 > work):
        return "fp8"
    return "fp16" if "fp16" in known and "bf16" not in known else "bf16"
