"""Products of one row, arranged for the compiler: other graphs, and the same numbers."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from flatout.infer.generating.vectors import ArrangeProducts


class Block(nn.Module):
    """Two products of one input, one with a bias, and one of what is made of both."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 16, bias=False), nn.Linear(8, 16)
        self.out = nn.Linear(16, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gated."""
        x = x * 2
        return self.out(torch.nn.functional.silu(self.one(x)) * self.two(x))


def arranged(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, Counter[Any]]:
    found: Counter[Any] = Counter()

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        ArrangeProducts()(graph.graph)
        graph.graph.lint()
        graph.recompile()
        found.update(node.target for node in graph.graph.nodes)
        return graph.forward

    torch._dynamo.reset()
    return torch.compile(module, backend=backend, fullgraph=True)(x), found


@torch.no_grad()
def test_what_products_of_one_row_read_is_written_down_once() -> None:
    module, x = Block(), torch.randn(1, 1, 8)
    out, found = arranged(module, x)
    torch.testing.assert_close(out, module(x))
    assert found[torch.as_strided] == 2, "one for both that share an input, one for the last"
    assert found[torch.add] == 1, "the bias"


@torch.no_grad()
@pytest.mark.parametrize("shape", [(2, 1, 8), (1, 3, 8)])
def test_several_rows_stay_as_they_are(shape: tuple[int, ...]) -> None:
    module, x = Block(), torch.randn(shape)
    out, found = arranged(module, x)
    torch.testing.assert_close(out, module(x))
    assert torch.as_strided not in found
    assert torch.add not in found


@torch.no_grad()
def test_under_autocast_a_bias_stays_with_its_product() -> None:
    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.product = nn.Linear(8, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.product(x)

    module, x = Biased(), torch.randn(1, 1, 8)
    with torch.autocast("cpu", torch.bfloat16):
        out, found = arranged(module, x)
    assert out.dtype == torch.bfloat16, "a sum of both would come in the dtype of the bias"
    assert torch.add not in found
