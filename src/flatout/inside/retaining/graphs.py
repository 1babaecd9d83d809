"""How far back the graph behind a tensor reaches: autograd numbers its nodes as it makes them.

A sum of losses (`total = total + loss`) or a state that is carried along without `.detach()` is one tensor to
Python, with the graphs of all steps before it behind it.
"""

import heapq
import itertools
import time
from typing import Any

# Gradients of parameters are accumulated by nodes with the highest number of all.
_ACCUMULATES = (1 << 64) - 1
_NODES = 4000


def reaches_back(tensor: Any, begin: int, end: int, deadline: float) -> bool:
    """Whether it was computed after `end` from what was computed between `begin` and `end`.

    Counts of nodes; the oldest are followed first.
    """
    order = itertools.count()  # nodes cannot be compared
    node = tensor.grad_fn
    if node is None or _number(node) < end:
        return False
    to_come, seen = [(_number(node), next(order), node)], {node}
    while to_come and len(seen) < _NODES and time.monotonic() < deadline:
        number, _, node = heapq.heappop(to_come)
        if begin <= number < end:
            return True
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                heapq.heappush(to_come, (_number(following), next(order), following))
    return False


def _number(node: Any) -> int:
    number = getattr(node, "_sequence_nr", None)
    return int(number()) if number is not None else _ACCUMULATES
