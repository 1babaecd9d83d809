"""torch.compile falls back to Python in the middle of the model.

Between two graphs nothing is fused, and the host launches as if nothing were compiled. Seen by the compiler's
own list of breaks. No gain is predicted: it depends on what lies around each break.
"""

from flatout.diagnose.rule import Rule, Seen
from flatout.records.finding import Finding


def look(seen: Seen) -> Finding | None:
    """Any break."""
    breaks = seen.profile.compile.graph_breaks
    if not breaks:
        return None
    worst = max(breaks, key=lambda reason: breaks[reason])
    return RULE.finding(
        f"{sum(breaks.values())} graph breaks; the most frequent: {worst}",
        "TORCH_LOGS=graph_breaks names the lines; torch.compile(fullgraph=True) insists on none",
        severity="medium",
        where=seen.place("root_call"),
    )


RULE = Rule("F402", "the compiler falls back to Python", look)
