"""Attention is computed step by step, with its scores in memory.

Written out, attention stores a number for every pair of tokens, several times over; a fused kernel never
does. Seen by a softmax over the product of queries and keys, and no fused attention. The gain is estimated
from the bytes of the softmax and of the products around it, which a fused kernel does not move; with no
device limits known, none is predicted. It can be wrong for attention with a mask or a bias that fused
kernels do not take.
"""

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen, without
from flatout.records.finding import Finding


def look(seen: Seen) -> Finding | None:
    """A softmax over scores, and nothing fused."""
    operators = seen.job.habit("operators") or ()
    shape = seen.job.habit("attention_shape") or ()
    if not shape or "aten._softmax" not in operators:
        return None
    if any("scaled_dot_product" in name for name in operators):
        return None
    batch, heads, queries, keys, _ = shape
    calls = seen.job.habit("attention_calls", 0) or 1
    moved = _PASSES * 4 * batch * heads * queries * keys * calls
    bandwidth, step_ms = seen.job.habit("bytes_per_s"), seen.job.step_ms
    speedup, arithmetic = None, ""
    if bandwidth and step_ms:
        share = min(0.9, 1000 * moved / bandwidth / step_ms)
        if share < policy.ATTENTION_BY_HAND:
            return None
        speedup, arithmetic = without(share, 8.0)
    return RULE.finding(
        f"scores of {batch} x {heads} x {queries} x {keys} are stored, {calls} times a step",
        "torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)",
        speedup=speedup,
        arithmetic=arithmetic,
        where=seen.lines("aten::_softmax"),
    )


# Products, scale, mask, softmax, dropout and their gradients read or write the scores about so often.
_PASSES = 14
RULE = Rule("F305", "attention written out", look, ("attention",))
