"""torch.compile compiles again and again while the job runs.

Each time the step takes seconds. Seen by steps after the first ones that compiled; a few are no finding, as
the last batch of an epoch or an evaluation has a shape of its own. What makes it do so are shapes or values
that change; marking them dynamic, or padding batches to a few sizes, ends it. No gain is predicted: how often
it will happen is not known.
"""

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen
from flatout.records.finding import Finding


def look(seen: Seen) -> Finding | None:
    """Compilations that no warm-up explains."""
    use = seen.profile.compile
    if use.compiles_in_steady_state < policy.COMPILES_IN_STEADY_STATE:
        return None
    return RULE.finding(
        f"{use.compiles_in_steady_state} steps after the first ones compiled, {use.compile_s:.0f} s in all",
        "TORCH_LOGS=recompiles names what changes; torch.compile(dynamic=True), or batches of few sizes",
        severity="high",
        where=seen.place("root_call"),
    )


RULE = Rule("F401", "the compiler never comes to an end", look)
