"""What kernels take while an operator runs."""

import pytest

torch = pytest.importorskip("torch")

from flatout.levers import chunked_loss  # noqa: E402
from flatout.memory.imagined.scratch import scratch_of  # noqa: E402


@pytest.mark.parametrize(("tokens", "rows"), [(300, 300), (65536, 5376)])
def test_a_loss_in_chunks_takes_a_chunk_and_the_weight_as_products_want_it(tokens: int, rows: int) -> None:
    x, weight = torch.empty(tokens, 64, device="meta"), torch.empty(50257, 64, device="meta")
    targets = torch.empty(tokens, dtype=torch.int64, device="meta")
    name = "flatout::linear_cross_entropy"
    [(last, found)] = scratch_of(torch, name, (x, weight, targets, -100, torch.bfloat16), ())
    assert last == 3
    assert found == 2 * (rows * 50304 + 50304 * 64 + 2 * rows * 64)
    fitting = torch.empty(50304, 64, device="meta", dtype=torch.bfloat16)
    [(_, less)] = scratch_of(torch, name, (x, fitting, targets, -100, torch.bfloat16), ())
    assert less == found - 2 * 50304 * 64
    assert chunked_loss.rows_of_kernel(50257, torch.bfloat16) == 5376
