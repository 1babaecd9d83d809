"""Much of the step moves numbers and computes little.

Elementwise operators, norms and softmaxes read and write whole tensors for an operation or two on each
number. Fused, most of these trips are saved. Seen by the kernels of recorded steps. The gain assumes that
fusion halves it. It can be wrong for code that is compiled already.
"""

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen, without
from flatout.diagnose.rules.eager_attention import is_written_out, share_of_scores
from flatout.records.finding import Finding


def look(seen: Seen) -> Finding | None:
    """The share of kernels that are bound by memory."""
    share = seen.share("memory_bound")
    if is_written_out(seen):  # a finding of its own, which says what to do about it
        share -= share_of_scores(seen) or 0.0
    if share < policy.MEMORY_BOUND or seen.job.habit("compiles"):
        return None
    trace = seen.profile.trace
    kernels = trace.kernels if trace is not None else ()
    most = [one.name for one in kernels if one.kind in ("memory_bound", "reduction")][:2]
    told = f", most of it in {', '.join(name.partition('<')[0][:60] for name in most)}" if most else ""
    speedup, arithmetic = without(share, 2.0)
    return RULE.finding(
        f"{share:.0%} of a step moves numbers and computes little{told}",
        "torch.compile(model) fuses what follows each other",
        speedup=speedup,
        arithmetic=arithmetic,
        where=seen.place("root_call"),
    )


RULE = Rule("F310", "kernels bound by memory", look, ("compile",), needs_only_a_trace=True)
