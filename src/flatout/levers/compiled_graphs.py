"""What the compiler has made in this process, asked without loading it."""

import sys


def graphs_compiled() -> int | None:
    """How many graphs; None where nobody has loaded it."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return int(counters["stats"]["unique_graphs"]) if counters is not None else None
