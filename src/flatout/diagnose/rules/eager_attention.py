"""Attention is computed step by step, with its scores in memory.

Written out, attention stores a number for every pair of tokens, several times over; a fused kernel never
does. Seen by a softmax over the product of queries and keys, and no fused attention. The gain is estimated
from the trips of the scores to memory and back, which a fused kernel does not make: a trip takes half of what
the softmax takes in recorded steps, or as long as the memory's bandwidth says. Where neither is known, no
gain is predicted. It can be wrong for attention with a mask or a bias that fused kernels do not take.
"""

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen, without
from flatout.records.finding import Finding

# Products, scale, mask, softmax, dropout and their gradients read or write the scores about so often;
# autocast turns them into float32 for the softmax and back, on both ways.
_TRIPS, _TRIPS_OF_AUTOCAST = 14, 6
_NUMBER_BYTES = 4
# Reads and writes of the scores by a softmax.
_TRIPS_OF_SOFTMAX = 2
# A fused kernel leaves so much of it: it computes the scores twice.
_LESS = 8.0


def look(seen: Seen) -> Finding | None:
    """A softmax over scores, and nothing fused."""
    if not is_written_out(seen):
        return None
    batch, heads, queries, keys, _ = seen.job.habit("attention_shape")
    share, speedup, arithmetic = share_of_scores(seen), None, ""
    if share is not None:
        if share < policy.ATTENTION_BY_HAND:
            return None
        speedup, arithmetic = without(share, _LESS)
    return RULE.finding(
        f"scores of {batch} x {heads} x {queries} x {keys} are stored, {_calls(seen)} times a step",
        "torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)",
        speedup=speedup,
        arithmetic=arithmetic,
        where=seen.lines("aten::_softmax"),
    )


def is_written_out(seen: Seen) -> bool:
    """Whether there is attention, and none that is fused."""
    operators = seen.job.habit("operators") or ()
    if not seen.job.habit("attention_shape") or "aten._softmax" not in operators:
        return False
    return not any("scaled_dot_product" in name for name in operators)


def share_of_scores(seen: Seen) -> float | None:
    """Of a step, what goes into moving scores; None where that cannot be told."""
    step_ms, trip_ms = seen.job.step_ms, _trip_ms(seen)
    if not step_ms or trip_ms is None:
        return None
    trips = _TRIPS + (_TRIPS_OF_AUTOCAST if seen.job.habit("autocast") else 0)
    return min(0.9, trips * trip_ms / step_ms)


def _trip_ms(seen: Seen) -> float | None:
    """A read or a write of all scores of a step: as the softmax shows, or as the memory allows."""
    trace = seen.profile.trace
    for operator in trace.operators if trace is not None else ():
        if operator.name == "aten::_softmax":
            return operator.ms / _TRIPS_OF_SOFTMAX
    bandwidth = seen.job.habit("bytes_per_s")
    if not bandwidth:
        return None
    batch, heads, queries, keys, _ = seen.job.habit("attention_shape")
    scores: float = batch * heads * queries * keys * _calls(seen)
    return 1000 * _NUMBER_BYTES * scores / float(bandwidth)


def _calls(seen: Seen) -> int:
    return seen.job.habit("attention_calls", 0) or 1


RULE = Rule("F305", "attention written out", look, ("attention",))
