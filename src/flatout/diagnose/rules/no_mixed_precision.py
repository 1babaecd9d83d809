"""The model computes in float32 where bf16 would do.

Products in bf16 run twice as fast as in TF32, and what is read and written has half the bytes. Seen by a
script that enters no autocast, has float32 parameters, and runs on a card with bf16. The gain follows from
the card's peaks, and from the time that products take where kernels were recorded, else from their number. It
can be wrong for small models that launches hold up: there the casts cost more than they save.
"""

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen
from flatout.levers.bf16 import Bf16
from flatout.records.finding import Finding


def look(seen: Seen) -> Finding | None:
    """Where the lever may be tried, and should pay."""
    if not seen.job.habits or not seen.job.on_gpu or Bf16.check(seen.job):
        return None
    speedup = Bf16.predict(seen.job, {})
    now, then = seen.job.products_share(seen.job.products_dtype), seen.job.products_share("bf16")
    if now is None or then is None:
        return None
    recorded = seen.faster_products(seen.job.products_dtype, "bf16")
    speedup, arithmetic = recorded or (
        speedup,
        f"at the peaks the products take {now:.0%} of a step now, and {then:.0%} in bf16",
    )
    if speedup < policy.WORTH_A_FINDING:
        return None
    return RULE.finding(
        f"the model computes in {seen.job.products_dtype}, and enters no autocast",
        'with torch.autocast("cuda", dtype=torch.bfloat16): around model and loss',
        speedup=speedup,
        arithmetic=arithmetic,
        where=seen.place("root_call"),
    )


RULE = Rule("F302", "no mixed precision", look, ("bf16",))
