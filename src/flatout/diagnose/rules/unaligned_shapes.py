"""Sizes that tensor cores cannot take as they are.

Tensor cores read rows of sixteen bytes: a vocabulary of 50,257 in bfloat16 makes every row of a product begin
somewhere else, and slower kernels are used. Seen by the shapes of the products in a counted step. How much
slower differs from card to card and from size to size; a third of the affected time is assumed. It can be
wrong for small products, which are bound by their launch.
"""

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen, without
from flatout.records.finding import Finding

# Of the time of a product whose rows do not fit.
_LOST = 1.5


def look(seen: Seen) -> Finding | None:
    """Products in low precision whose sizes are no whole rows."""
    if not seen.job.on_gpu:
        return None
    low = [one for one in seen.profile.products if one.pad and _is_low(one.dtype, seen)]
    share = sum(one.share for one in low)
    if share < policy.UNALIGNED:
        return None
    worst = max(low, key=lambda one: one.share)
    padded = ", ".join(f"{name} {getattr(worst, name)} -> {size}" for name, size in worst.pad.items())
    products = seen.share("matmul") or (seen.job.products_share(seen.job.products_dtype) or 0.0)
    speedup, arithmetic = without(share * products, _LOST)
    return RULE.finding(
        f"{share:.0%} of the products' operations have sizes that tensor cores cannot take as they are, "
        f"the largest {worst.m} x {worst.k} by {worst.k} x {worst.n} in {worst.dtype}",
        f"pad to {padded}; a vocabulary best to a multiple of 64",
        speedup=speedup if speedup > 1.0 else None,
        arithmetic=arithmetic if speedup > 1.0 else "",
        where=seen.lines(worst.operator),
    )


def _is_low(dtype: str, seen: Seen) -> bool:
    return dtype in ("bfloat16", "float16") or (dtype == "float32" and bool(seen.job.habit("tf32")))


RULE = Rule("F304", "shapes that miss tensor cores", look)
