"""Which linear layers of a block can be divided: first by columns, then by rows, in pairs.

Layers that read the same tensor (a query, a key and a value; a gate and its partner) are divided by columns:
each rank computes some of their outputs. The next layer, which brings back the block's width, is divided by
rows: each rank reads what it has, and the results are summed. What lies between must treat outputs one by one
or by heads, which shapes alone do not tell: it is proven afterwards.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

from flatout.runtime.parallel.calling import Called

_FUSED = "things in one"


@dataclasses.dataclass(frozen=True)
class Found:
    """Layers and how they are divided, and why others are not."""

    styles: Mapping[str, Any]
    left: tuple[str, ...]


def find_pairs(block: Any, seen: Called, ranks: int) -> Found:
    """By the order of calls, by what they read, and by shapes."""
    modules = dict(block.named_modules())
    styles: dict[str, str] = {}
    left: list[str] = []
    groups = [
        [one.name for one in group] for _, group in itertools.groupby(seen.readings, lambda one: one.read)
    ]
    at = 0
    while at < len(groups):
        columns = groups[at]
        row = groups[at + 1] if at + 1 < len(groups) else []
        problem = _problem(modules, columns, row, ranks)
        if problem:
            left.append(problem)
            # What comes after things in one belongs to them.
            at += 2 if _FUSED in problem else 1
            continue
        styles |= dict.fromkeys(columns, "column") | {row[0]: "row"}
        at += 2
    repeated = [name for name in seen.linears if seen.linears.count(name) > 1]
    if repeated:  # called several times: nobody knows whether it reads the same kind of thing
        return Found({}, (f"{repeated[0]} is called several times",))
    return Found(styles, tuple(left))


def _problem(modules: dict[str, Any], columns: list[str], row: list[str], ranks: int) -> str:
    """Why these are no pair, or nothing."""
    listed = " + ".join(columns)
    if len(row) != 1:
        return f"{listed} is not followed by one layer that brings its outputs together"
    outputs = {modules[name].out_features for name in columns}
    reads = modules[row[0]].in_features
    width = modules[columns[0]].in_features
    if modules[row[0]].out_features != width:
        return f"{row[0]} does not bring back the width that {listed} reads"
    if reads not in outputs:
        fused = len(columns) == 1 and max(outputs) % reads == 0
        more = f": it holds {max(outputs) // reads} {_FUSED}, which would be divided wrongly" if fused else ""
        return f"{listed} gives {max(outputs)}, and {row[0]} reads {reads}{more}"
    uneven = [size for size in sorted({*outputs, reads}) if size % ranks]
    if uneven:
        return f"{uneven[0]} outputs of {listed} do not divide by {ranks} ranks"
    return ""
