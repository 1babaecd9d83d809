"""torch.compile was called, and has compiled nothing.

The compiled object must be the one that is called: a script that compiles `model` and then trains
`trainer.model`, or compiles only for evaluation, runs as written. Seen by a compiled module among those that
train and a compiler that has made no graph after the first steps. It can be wrong for a script that compiles
later.
"""

from flatout.diagnose.rule import Rule, Seen
from flatout.records.finding import Finding


def look(seen: Seen) -> Finding | None:
    """Asked for, and no graph."""
    if not seen.job.habit("compiles") or seen.job.habit("graphs") != 0:
        return None
    return RULE.finding(
        "a compiled module trains, and the compiler has made no graph",
        "call the object that torch.compile returned; TORCH_LOGS=dynamo says why it gives up",
        where=seen.place("root_call"),
    )


RULE = Rule("F403", "compiling that does nothing", look)
