"""One rank of a small training that goes through every strategy and counts what it sends.

python -m flatout.learn.jobs.ranks RANK COUNT FOLDER
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from flatout.learn.small_gpt import loss_of, small_gpt, tokens_of
from flatout.learn.wire import sent_bytes
from flatout.records.atomic import write_atomically
from flatout.runtime.parallel.ddp import Ddp, DdpOptions
from flatout.runtime.parallel.fsdp import Fsdp, FsdpOptions
from flatout.runtime.parallel.joining import join
from flatout.runtime.parallel.pipeline import Pipeline, PipelineOptions
from flatout.runtime.parallel.tensor import Tensor, TensorOptions
from flatout.runtime.parallel.wrapped import Job

WIDTH, LAYERS, LENGTH, BATCH = 128, 4, 64, 16
_WARMUP, _STEPS = 2, 3
_TIMEOUT_S = 90.0
_SETTLE_S = 0.05
STRATEGIES: dict[str, tuple[Any, Any]] = {
    "ddp": (Ddp, DdpOptions()),
    "fsdp": (Fsdp, FsdpOptions()),
    "tensor": (Tensor, TensorOptions()),
    "pipeline": (Pipeline, PipelineOptions()),
}


class RankCount(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank sent in a step by a strategy, and what it holds between steps."""

    strategy: str
    sent_bytes: float
    held_bytes: int
    step_s: float


def main(rank: int, count: int, folder: Path) -> None:
    """Meet the others, train by each strategy, and leave the counts in the folder."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=count)
    for strategy in STRATEGIES:
        found = _train(torch, strategy, rank, count)
        write_atomically(folder / f"{strategy}.{rank}.json", msgspec.json.encode(found), synced=False)
    dist.destroy_process_group()


def _train(torch: Any, strategy: str, rank: int, count: int) -> RankCount:
    import torch.distributed as dist

    torch.manual_seed(0)
    model = small_gpt(torch, width=WIDTH, layers=LAYERS, length=LENGTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = tokens_of(torch, BATCH, LENGTH)
    joined = join(timeout_s=_TIMEOUT_S, device="cpu")
    kind, options = STRATEGIES[strategy]
    wrapped = kind(Job(joined, model, optimizer, tokens), options)
    if wrapped.data == "apart":  # the same samples in all, whichever way they are divided
        tokens = tokens.chunk(count)[rank]
    try:
        for _ in range(_WARMUP):
            _step(wrapped, tokens)
        dist.barrier()
        before, started = sent_bytes(), time.perf_counter()
        for _ in range(_STEPS):
            _step(wrapped, tokens)
        took_s = time.perf_counter() - started
        time.sleep(_SETTLE_S)  # what waits in buffers goes out
        sent = sent_bytes() - before
        dist.barrier()
        return RankCount(
            strategy=strategy,
            sent_bytes=sent / _STEPS,
            held_bytes=sum(_bytes(one) for one in _held(wrapped.optimizer)),
            step_s=took_s / _STEPS,
        )
    finally:
        wrapped.close()


def _step(wrapped: Any, tokens: Any) -> None:
    wrapped.train_step(tokens, tokens, loss_of)
    wrapped.optimizer.step()
    wrapped.optimizer.zero_grad(set_to_none=False)


def _held(optimizer: Any) -> Iterator[Any]:
    """Parameters that this rank trains, their gradients, and the optimizer's states."""
    for group in optimizer.param_groups:
        for one in group["params"]:
            yield one
            if one.grad is not None:
                yield one.grad
            yield from (value for value in optimizer.state[one].values() if hasattr(value, "numel"))


def _bytes(tensor: Any) -> int:
    own = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return int(own.numel() * own.element_size())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
