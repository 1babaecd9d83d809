"""The loss over a large vocabulary moves more bytes than it should.

A cross entropy over 50,000 classes reads and writes its input five times in float32 when it is computed
operator by operator. Seen by the bytes that the softmax of the loss moves in a counted step, against the
bandwidth of the device. The gain is what compiling it leaves. It can be wrong where the loss is computed
inside a model that is compiled already.
"""

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen, without
from flatout.records.finding import Finding

_SOFTMAXES = ("aten::_log_softmax", "aten::_log_softmax_backward_data", "aten::nll_loss_forward")


def look(seen: Seen) -> Finding | None:
    """The loss's share of a step, at the device's bandwidth."""
    moved, bandwidth = seen.job.habit("loss_bytes"), seen.job.habit("bytes_per_s")
    if not moved or not bandwidth or not seen.job.step_ms or seen.job.habit("compiles"):
        return None
    share = min(0.9, 1000 * moved / bandwidth / seen.job.step_ms)
    if share < policy.LARGE_LOSS:
        return None
    speedup, arithmetic = without(share, 3.0)
    return RULE.finding(
        f"the softmax of the loss moves {moved / 1e9:.2f} GB a step, {share:.0%} of it at the full bandwidth",
        "torch.compile the loss with the model, or a fused linear cross entropy",
        speedup=speedup,
        arithmetic=arithmetic,
        where=seen.lines(*_SOFTMAXES),
    )


RULE = Rule("F307", "the loss over a large vocabulary", look, ("compile", "linear-cross-entropy"))
