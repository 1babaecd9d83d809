"""One batch through the module: whole, or in parts once memory has run out."""

import gc
from collections.abc import Callable
from typing import Any

import torch

from flatout.infer.optimizing.calling import arguments
from flatout.inside.out_of_memory import is_out_of_memory
from flatout.levers.batches import leaves
from flatout.memory.splitting import samples_in, split
from flatout.records.errors import CallerMistake, JobFailed


class Computing:
    """Calls the module, and remembers what fits."""

    def __init__(
        self,
        module: Callable[..., Any],
        inputs: Callable[[Any], Any] | None,
        device: torch.device,
        part_size: int | None,
    ) -> None:
        self._module = module
        self._inputs = inputs
        self._device = device
        # Samples at a time, since memory ran out; None for whole batches.
        self.part_size = part_size

    def outputs(self, batch: Any) -> list[dict[str, torch.Tensor]]:
        """Outputs by name, part after part; still on the device."""
        given = self._given(batch)
        samples = samples_in(given)
        while True:
            size = self.part_size or samples
            try:
                return [self._one(part) for part in split(given, size, samples)]
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            # Outside of `except`: the error holds the frames, and they hold the memory.
            self._smaller(min(size, samples))

    def whole(self, batch: Any) -> dict[str, torch.Tensor]:
        """The same in one piece, come what may."""
        return self._one(self._given(batch))

    def _given(self, batch: Any) -> Any:
        given = self._inputs(batch) if self._inputs is not None else batch
        return tuple(given) if isinstance(given, list) else given

    @torch.no_grad()
    def _one(self, part: Any) -> dict[str, torch.Tensor]:
        answer = self._answer(part)
        named = [(path or "output", tensor.detach()) for path, tensor in leaves(answer)]
        found = dict(named)
        if len(found) < len(named):
            raise CallerMistake(
                f"two outputs of the same name, among {', '.join(sorted(found))}",
                expected="names without points: those of nested outputs are joined by them",
                remedy="wrap the module in one that returns them by other names",
            )
        samples = samples_in(part)
        odd = [name for name, one in found.items() if not one.dim() or one.shape[0] != samples]
        if odd or not found:
            raise CallerMistake(
                f"outputs without one entry for each of {samples} samples: {', '.join(odd) or 'no tensor'}",
                expected="tensors, in any nesting, whose first dimension is that of the samples",
                remedy="wrap the module in one that returns what is to be kept",
            )
        return found

    def _answer(self, part: Any) -> Any:
        try:
            return arguments(part).of(self._module)
        except TypeError as error:
            if self._inputs is not None or not isinstance(part, tuple) or "argument" not in str(error):
                raise
            raise CallerMistake(
                f"the module was called with all {len(part)} parts of a batch: {error}",
                expected="batches that are the module's arguments, or a function that picks them out",
                remedy="inputs=lambda batch: batch[0]",
            ) from error

    def _smaller(self, size: int) -> None:
        if size == 1:
            raise no_room()
        self.part_size = (size + 1) // 2
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


def no_room() -> JobFailed:
    """Where nothing is left to split."""
    return JobFailed(
        "a single sample runs out of memory",
        expected="a module that fits into memory with one sample",
        remedy="a lower precision (flatout.optimize), or a GPU with more memory (flatout fit)",
    )
