"""Products run beside the tensor cores.

A card's tensor cores multiply ten times faster than its other units; kernels that do not use them say so in
their names. Seen by the kernels of products and convolutions in recorded steps; those whose names say nothing
count as being on them. Silent where TF32 or mixed precision would cure it, which have findings of their own.
The gain follows from the card's peaks. It can be wrong where the job needs every bit of float32 or float64.
"""

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen, without
from flatout.records.finding import Finding


def look(seen: Seen) -> Finding | None:
    """Products off tensor cores, where the card has them."""
    trace = seen.profile.trace
    capability = seen.job.capability
    if trace is None or trace.off_tensor_cores_share is None or capability is None or capability < (7, 0):
        return None
    off, products = trace.off_tensor_cores_share, seen.share("matmul")
    if off < policy.OFF_TENSOR_CORES or products < policy.PRODUCTS:
        return None
    fast, slow = seen.job.peaks.get("tf32") or seen.job.peaks.get("fp16"), seen.job.peaks.get("fp32")
    names = [one for one in trace.kernels if one.tensor_cores is False][:2]
    told = ", ".join(one.name.partition("<")[0][:60] for one in names)
    speedup, arithmetic = without(off * products, fast / slow) if fast and slow else (None, "")
    return RULE.finding(
        f"{off:.0%} of the time of products is spent off tensor cores ({told})",
        'torch.set_float32_matmul_precision("high"), or bf16 autocast',
        speedup=speedup,
        arithmetic=arithmetic,
        where=seen.lines("aten::addmm", "aten::mm", "aten::bmm", "aten::convolution"),
    )


RULE = Rule(
    "F309",
    "products off tensor cores",
    look,
    ("tf32", "bf16"),
    silent_beside=("F301", "F302"),
    needs_only_a_trace=True,
)
