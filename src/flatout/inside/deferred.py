"""Numbers that lie on a device, read later: an asynchronous copy to pinned memory, never a synchronize.

A slot is filled once the device has passed the event at the end of the step it belongs to; until then nobody
looks at it.
"""

import ctypes
from typing import Any

_SLOTS = 2048


def leave_to_the_parent(things: object) -> None:
    """Never free these, in a forked child: events and pinned memory belong to the parent's CUDA context.

    Freeing one there ends the child: "CUDA error: initialization error".
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(things))


class Slot:
    """A place in pinned memory that will hold one number."""

    __slots__ = ("_number", "_ring")

    def __init__(self, ring: "_Ring", number: int) -> None:
        self._ring = ring
        self._number = number

    def read(self) -> float | int | None:
        """The number; only after the event that follows its copy has passed. None where it came too late."""
        if self._ring.given - self._number > _SLOTS:
            return None  # the ring has come around: another number lies there
        value: float | int = self._ring.places[self._number % _SLOTS].item()
        return value


class _Ring:
    """Pinned memory for numbers of one dtype, and how many were given out of it so far."""

    __slots__ = ("given", "places")

    def __init__(self, buffer: Any) -> None:
        self.places = buffer.unbind()
        self.given = 0


class Deferred:
    """Hands out slots from one ring of pinned memory for each dtype."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._copy = torch._C.TensorBase.copy_  # noqa: SLF001
        self._rings: dict[Any, _Ring] = {}

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
            # A tensor that is made while inference is on can never be written to afterwards; and scripts set
            # the GPU as the device on which tensors are made.
            with self._torch.inference_mode(False):
                buffer = self._torch.empty(_SLOTS, dtype=number.dtype, device="cpu", pin_memory=True)
                ring = self._rings[number.dtype] = _Ring(buffer)
        slot = Slot(ring, ring.given)
        place = ring.places[ring.given % _SLOTS]
        ring.given += 1
        # Past our own tap on copies, which patches the subclass.
        self._copy(place, number if number.dim() == 0 else number.reshape(()), non_blocking=True)
        return slot
