"""Numbers that lie on a device, read later: an asynchronous copy to pinned memory, never a synchronize.

A slot is filled once the device has passed the event at the end of the step it belongs to; until then nobody
looks at it.
"""

from typing import Any

_SLOTS = 2048


class Slot:
    """A place in pinned memory that will hold one number."""

    __slots__ = ("_buffer", "_place")

    def __init__(self, buffer: Any, place: int) -> None:
        self._buffer = buffer
        self._place = place

    def read(self) -> float | int:
        """The number; only after the event that follows its copy has passed."""
        value: float | int = self._buffer[self._place].item()
        return value


class Deferred:
    """Hands out slots from one ring of pinned memory for each dtype."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._copy = torch._C.TensorBase.copy_  # noqa: SLF001
        self._rings: dict[Any, list[Any]] = {}

    def value_of(self, number: Any) -> Any:
        """The number itself where it lies in host memory, else a slot; None where it cannot be read."""
        if isinstance(number, int | float):
            return number
        if number.numel() != 1:
            return None
        number = number.detach()
        if number.device.type == "cpu":
            return number.item()
        if number.device.type != "cuda" or self._torch.cuda.is_current_stream_capturing():
            return None
        ring = self._rings.get(number.dtype)
        if ring is None:
            buffer = self._torch.empty(_SLOTS, dtype=number.dtype, pin_memory=True)
            ring = self._rings[number.dtype] = [buffer, buffer.unbind(), 0]
        buffer, places, following = ring
        ring[2] = (following + 1) % _SLOTS
        # Past our own tap on copies, which patches the subclass.
        self._copy(places[following], number if number.dim() == 0 else number.reshape(()), non_blocking=True)
        return Slot(buffer, following)
