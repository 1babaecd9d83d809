"""Many kernels that each do next to nothing.

A kernel takes a few microseconds to launch, whatever it does: thousands of small ones hold a GPU that could
do their work in a fraction of that. Seen by kernels in recorded steps that take less than the policy's few
microseconds on average, by how many there are, and by a device that idles between them. The gain is what is
left when compiling takes three quarters of the gaps away. It can be wrong where the gaps come from Python
code that does other work.
"""

from collections import Counter

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen, without
from flatout.records.finding import Finding


def look(seen: Seen) -> Finding | None:
    """More tiny kernels than the policy allows, and gaps between them."""
    trace = seen.profile.trace
    if trace is None or not trace.kernels:
        return None
    tiny = [one for one in trace.kernels if one.mean_us < policy.TINY_KERNEL_US]
    calls, gaps = sum(one.calls for one in tiny), seen.share("launch_gap")
    if calls < policy.TINY_KERNELS or gaps < policy.IDLE:
        return None
    operators = Counter[str]()
    for one in seen.profile.lines:
        operators[one.operator] += one.calls
    most = tuple(name for name, _ in operators.most_common(3))
    speedup, arithmetic = without(gaps, 4.0)
    return RULE.finding(
        f"{calls:.0f} kernels a step take less than {policy.TINY_KERNEL_US:g} us each; the device idles "
        f"{gaps:.0%} of the time between launches",
        "batch what a loop does one by one (stack, vmap, foreach), or torch.compile",
        speedup=speedup,
        arithmetic=arithmetic,
        where=seen.lines(*most),
    )


RULE = Rule("F205", "many tiny kernels", look, ("compile",), needs_only_a_trace=True)
