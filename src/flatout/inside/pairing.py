"""Proof that two runs saw the same: checksums of the roots' parameters before training, and of their inputs.

What a model made is no data, and may differ by rounding: the hidden state that goes into the next call, or
the images that one model makes for another. Computed on the device where the tensors lie, without touching
any random state, and read later like a loss.
"""

import collections
import random
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flatout.levers.outputs import memory_of

if TYPE_CHECKING:
    from flatout.inside.session import Session

_CHUNK = 1 << 22
# Outputs that are remembered.
_FEW = 64


class Pairing:
    """Checksums for the first updates; the session's describe() carries them."""

    def __init__(self, session: "Session", updates: int) -> None:
        self._session = session
        self._updates = updates
        self._known: set[int] = set()
        # Memory of what the last calls returned.
        self._made: collections.deque[Any] = collections.deque(maxlen=_FEW)
        self.parameters: list[Any] = []
        self.inputs: list[list[Any]] = []

    def called(self, module: Any, args: Any, kwargs: Any) -> None:
        """A root is about to be called for training."""
        session = self._session
        if session.updates >= self._updates or is_capturing(session.torch):
            return
        session.busy += 1  # our own copies are none of the loop's
        try:
            if id(module) not in self._known:
                self._known.add(id(module))
                if session.updates == 0:
                    tensors = [*module.parameters(), *module.buffers()]
                    self.parameters.append(self._sum(tensors))
            data = [one for one in tensors_in((args, kwargs)) if not self._is_made(one)]
            self.inputs.append([session.updates, self._sum(data)])
        finally:
            session.busy -= 1

    def returned(self, result: Any) -> None:
        """What a root made: no data, should it come back."""
        if self._session.updates < self._updates:
            self._made.extend(memory_of(one) for one in tensors_in(result))

    def _is_made(self, tensor: Any) -> bool:
        if tensor.grad_fn is not None:
            return True
        own = memory_of(tensor).cdata
        return any(made.cdata == own for made in self._made if not made.expired())

    def describe(self) -> dict[str, Any]:
        """What was seen, as numbers; slots that a device has not filled yet are left for later."""
        return {
            "parameters": [_read(value) for value in self.parameters],
            "inputs": [[update, _read(value)] for update, value in self.inputs],
        }

    def _sum(self, tensors: Any) -> Any:
        torch = self._session.torch
        with torch.no_grad():
            total = None
            for tensor in tensors:
                part = checksum(torch, tensor)
                if part is not None:
                    total = part if total is None else total.to(part.device) * 1_000_003 + part
            return None if total is None else self._session.gpu.deferred.value_of(total)


def seed_everything(torch: Any, seed: int) -> None:
    """The same random numbers for every run that is to be compared."""
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def is_capturing(torch: Any) -> bool:
    """Whether a CUDA graph is being captured: what we launched would become part of it."""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def _read(value: Any) -> Any:
    return value.read() if hasattr(value, "read") else value


def tensors_in(tree: Any) -> Iterator[Any]:
    """Every tensor in nested tuples, lists and dicts, in order."""
    if hasattr(tree, "untyped_storage"):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from tensors_in(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from tensors_in(value)


def checksum(torch: Any, tensor: Any) -> Any:
    """A 64-bit sum over the tensor's bits, each weighted by its place; None for what has no plain storage."""
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
        return None
    if tensor.device.type == "meta" or torch.nn.parameter.is_lazy(tensor):
        return None
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    bits = plain.reshape(-1).view(torch.uint8)
    if bits.numel() % 4 == 0:
        # A slice may begin between two words.
        bits = (bits if bits.storage_offset() % 4 == 0 else bits.clone()).view(torch.int32)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, bits.numel(), _CHUNK):
        part = bits[start : start + _CHUNK].to(torch.int64)
        weights = torch.arange(start + 1, start + 1 + part.numel(), dtype=torch.int64, device=tensor.device)
        total = total * 31 + (part * weights).sum() + part.sum()
    return total
