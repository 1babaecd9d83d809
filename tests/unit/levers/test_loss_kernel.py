"""The kernel of the loss in chunks, by triton's interpreter where there is triton."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="triton, which comes with torch for CUDA, is not installed")

# The interpreter is chosen when triton is loaded.
PROGRAM = """
import torch
from torch.nn import functional as F
from flatout.levers import chunked_loss, loss_kernel

loss_kernel._BLOCK, chunked_loss._TILE_ROWS = 64, 4
chunked_loss._CHUNK_OF_KERNEL_BYTES = 4 * 97 * 8
chunked_loss.why_no_kernel = lambda *_: ""
torch.manual_seed(0)
loss = chunked_loss.linear_cross_entropy(torch)
for dtype, close in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
    for tokens, ignored in ((33, 5), (33, 0), (3, 3), (0, 0)):
        x = torch.randn(tokens, 16, requires_grad=True)
        weight = torch.randn(97, 16, requires_grad=True)
        targets = torch.randint(97, (2 * tokens,))[::2]
        targets[:ignored] = -1
        logits = x.to(dtype).double() @ weight.to(dtype).double().t()
        expected = F.cross_entropy(logits, targets, ignore_index=-1)
        found = loss(x, weight, targets, -1, dtype)
        torch.testing.assert_close(found, expected.float(), rtol=close, atol=close, equal_nan=True)
        wanted = torch.autograd.grad(3 * expected, (x, weight))
        for one, other in zip(torch.autograd.grad(3 * found, (x, weight)), wanted, strict=True):
            assert float((one - other).norm()) <= close * float(other.norm())
x, weight = torch.randn(9, 16, requires_grad=True), torch.randn(97, 16)
targets = torch.arange(9)
targets[4] = 97
found = loss(x, weight, targets, -1, torch.float32)
assert found.isnan()
[gradient] = torch.autograd.grad(found, (x,))
assert gradient[4].isnan().all() and gradient[:4].isfinite().all()
print("the same")
"""


def test_loss_and_gradients_are_those_of_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.stdout, done.returncode) == ("the same\n", 0), done.stderr
