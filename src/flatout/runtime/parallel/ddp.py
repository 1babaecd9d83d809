"""DistributedDataParallel: every rank holds the whole model, and gradients are averaged on the way back."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

from flatout.records.errors import CallerMistake
from flatout.runtime.parallel.again import Again
from flatout.runtime.parallel.parameters import to_device
from flatout.runtime.parallel.wrapped import Job, Wrapped


@dataclasses.dataclass(frozen=True)
class DdpOptions:
    """What can be asked of it."""

    # The same parameters get gradients in every step: torch then skips its search for others, and checks it.
    static_graph: bool = False
    # Some parameters get none in some steps; a walk over the graph in every step finds out which.
    find_unused: bool = False
    # Gradients travel as bf16: half the traffic, other rounding.
    compress: Literal["bf16"] | None = None
    # Of the blocks, how many are computed again in the backward pass.
    checkpoint: bool | float = False


class Ddp(Wrapped):
    """A model in DistributedDataParallel."""

    data = "apart"

    def __init__(self, job: Job, options: DdpOptions) -> None:
        from torch.nn.parallel import DistributedDataParallel

        to_device(job.model, job.optimizer, job.joined.device)
        self._again = Again(job.model, options.checkpoint)
        on_gpu = job.joined.device.type == "cuda"
        wrapper = DistributedDataParallel(
            job.model,
            device_ids=[job.joined.device] if on_gpu else None,
            # Gradients lie in the buffers that travel: less memory, and one copy less.
            gradient_as_bucket_view=True,
            static_graph=options.static_graph,
            find_unused_parameters=options.find_unused,
        )
        if options.compress is not None:
            wrapper.register_comm_hook(None, _as_bf16(on_gpu=on_gpu))
        count = job.joined.count
        super().__init__(
            job,
            model=wrapper,
            reason=f"{count} ranks hold the whole model; gradients are averaged"
            + (" as bf16" if options.compress else "")
            + self._again.words,
        )
        self._static = options.static_graph

    @contextlib.contextmanager
    def accumulating(self, *, last: bool) -> Iterator[None]:
        """Without `last`, gradients stay on their rank."""
        if last:
            yield
            return
        # torch 2.13 and before: the first such backward pass fails, or gradients are no longer averaged.
        if self._static:
            raise CallerMistake(
                "accumulating with static_graph=True",
                expected="a graph that may be followed anew: torch loses count of a static one",
                remedy="leave static_graph out",
            )
        with self.model.no_sync():
            yield

    def close(self) -> None:
        """Blocks compute as they did."""
        self._again.undo()


def _as_bf16(*, on_gpu: bool) -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    # torch asks for NCCL wherever it sees its hook by name; gloo sums bf16 as well.
    return bf16_compress_hook if on_gpu else lambda state, bucket: bf16_compress_hook(state, bucket)  # noqa: PLW0108
