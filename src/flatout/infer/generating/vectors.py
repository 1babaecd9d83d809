"""Products of one row, arranged so that the compiler makes few kernels of them, each a walk through weights.

With one row, a product is a sum over a matrix. Left alone, the compiler computes what comes before it (a
norm, an activation) anew in every block of that sum, by other kernels from layer to layer; and products with
a bias go to a library.
"""

import inspect
import math
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files


class ArrangeProducts(CustomGraphPass):  # type: ignore[misc,unused-ignore]
    """A pass over the graph of a step, before it is taken apart; what has several rows stays as it is."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Change it in place."""
        written: dict[Any, Any] = {}
        for node in list(graph.nodes):
            if node.target is not torch._C._nn.linear or not _is_one_row(node):  # noqa: SLF001
                continue
            given = node.args[0]
            if given not in written:
                with graph.inserting_before(node):
                    written[given] = _written_down(graph, given)
            node.replace_input_with(given, written[given])
            _add_bias_apart(graph, node)

    def uuid(self) -> Any:
        """What was compiled with another version of this file is not used."""
        return get_hash_for_files((inspect.getfile(ArrangeProducts),))


def _is_one_row(product: Any) -> bool:
    value = product.args[0].meta.get("example_value")
    if not isinstance(value, torch.Tensor) or not all(
        isinstance(size, int) for size in (*value.shape, *value.stride())
    ):
        return False
    return value.dim() > 0 and math.prod(value.shape) == value.shape[-1]


def _written_down(graph: torch.fx.Graph, given: Any) -> Any:
    """A view of it that makes the compiler write it to memory: it has no other word for that."""
    value = given.meta["example_value"]
    once = graph.call_function(torch.as_strided, (given, tuple(value.shape), tuple(value.stride())))
    once.meta["example_value"] = value
    return once


def _add_bias_apart(graph: torch.fx.Graph, product: Any) -> None:
    """It joins the kernel of the product; together they would be a call of a library."""
    bias = product.args[2] if len(product.args) > 2 else product.kwargs.get("bias")
    if bias is None or _is_cast(product, bias):
        return
    with graph.inserting_before(product):
        alone = graph.call_function(product.target, tuple(product.args[:2]))
        alone.meta["example_value"] = product.meta.get("example_value")
        found = graph.call_function(torch.add, (alone, bias))
        found.meta["example_value"] = product.meta.get("example_value")
    product.replace_all_uses_with(found)
    graph.erase_node(product)


def _is_cast(product: Any, bias: Any) -> bool:
    """Under autocast, a product comes in a lower precision than its bias, and a sum of both would not."""
    came, added = (one.meta.get("example_value") for one in (product, bias))
    return isinstance(came, torch.Tensor) and isinstance(added, torch.Tensor) and came.dtype != added.dtype
