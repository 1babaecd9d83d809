"""Matrix products run in full float32 on a card that has TF32.

TF32 keeps float32's range and rounds the factors of a product to ten bits; tensor cores then compute it many
times faster. Seen by torch's switches and the card's generation. The gain follows from the card's peaks, and
from the time that products take off tensor cores where kernels were recorded, else from their number. It can
be wrong for code that needs every bit of its products (physics, some losses): the guard of `flatout tune`
looks at that.
"""

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen
from flatout.levers.tf32 import Tf32
from flatout.records.finding import Finding


def look(seen: Seen) -> Finding | None:
    """Where the lever may be tried, and should pay."""
    if not seen.job.habits or Tf32.check(seen.job):
        return None
    speedup = Tf32.predict(seen.job, {})
    share = seen.job.products_share("fp32")
    if share is None:
        return None
    arithmetic = (
        f"at the peak of float32 the products take {share:.0%} of a step, in TF32 "
        f"{seen.job.products_share('tf32') or 0.0:.0%}"
    )
    trace = seen.profile.trace
    off = trace.off_tensor_cores_share if trace is not None else None
    recorded = seen.faster_products("fp32", "tf32", of_products=off) if off is not None else None
    speedup, arithmetic = recorded or (speedup, arithmetic)
    if speedup < policy.WORTH_A_FINDING:
        return None
    return RULE.finding(
        "products are computed in float32, without TF32",
        'torch.set_float32_matmul_precision("high")',
        speedup=speedup,
        arithmetic=arithmetic,
        where=seen.lines("aten::addmm", "aten::mm", "aten::bmm"),
    )


RULE = Rule("F301", "products in full float32", look, ("tf32",))
