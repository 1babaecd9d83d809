"""Tensors that wait in the host's memory, and travel on streams of their own beside what is computed.

`ToHost` lets copies leave and `FromHost` fetches them back. Nobody waits on the host: a device's own stream
waits for a copy before the memory that it came from, or that it came to, is used again.
"""

import collections
from typing import Any

# Copies under way at a time: what they hold on the device is not free yet, or taken early.
_WINDOW_BYTES = 1 << 30
_WINDOW_SHARE = 1 / 64
_LEFT_TO_THE_HOST = 4 << 30


class Copies:
    """One stream for copies, and what waits for it; on a CPU they are done at once."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def copy(self, target: Any, source: Any, after: Any = None) -> Any:
        """Begin once everything that was launched so far is done; an event for its end."""
        if self._stream is None:
            target.copy_(source)
            return None
        self._stream.wait_stream(self._torch.cuda.current_stream(self._device))
        if after is not None:
            self._stream.wait_event(after)
        with self._torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        return self._stream.record_event()

    def wait_for(self, event: Any) -> None:
        """What is launched from here on begins after it."""
        if event is not None:
            self._torch.cuda.current_stream(self._device).wait_event(event)

    def finish(self) -> None:
        """The host waits until all that has begun is done."""
        if self._stream is not None:
            self._stream.synchronize()


class ToHost(Copies):
    """Tensors on their way out: each is held until its copy is done, and not too many at a time."""

    def __init__(self, torch: Any, device: Any, window_bytes: int | None) -> None:
        super().__init__(torch, device)
        self._window = window_bytes
        self._leaving: collections.deque[tuple[Any, Any]] = collections.deque()
        self._leaving_bytes = 0

    def send(self, tensor: Any, home: "Away | None" = None) -> "Away":
        """The tensor's stay on the host, where it was before if it has a home; drop the tensor itself now."""
        away = home or Away(self._torch, tensor)
        away.left = self.copy(away.host, tensor)
        self._leaving.append((away.left, tensor))
        self._leaving_bytes += tensor.nbytes
        while self._window is not None and self._leaving_bytes > self._window:
            self._let_one_go()
        return away

    @property
    def is_busy(self) -> bool:
        """Whether anything is held."""
        return bool(self._leaving)

    def let_go(self, share: float = 1.0) -> None:
        """So much of it is not held any more once what is launched next begins, those that left first."""
        left = (1.0 - share) * self._leaving_bytes
        while self._leaving and self._leaving_bytes > left:
            self._let_one_go()

    def _let_one_go(self) -> None:
        event, tensor = self._leaving.popleft()
        self.wait_for(event)
        self._leaving_bytes -= tensor.nbytes


class FromHost(Copies):
    """Tensors on their way back."""

    def fetch(self, away: "Away") -> tuple[Any, Any]:
        """The tensor, and the event after which it is whole."""
        tensor = away.empty(self._device)
        return tensor, self.copy(tensor, away.host, after=away.left)


class Away:
    """A tensor that waits in the host's memory, in the order in which it lay."""

    __slots__ = ("__weakref__", "_torch", "host", "left", "number")

    def __init__(self, torch: Any, tensor: Any) -> None:
        self._torch = torch
        # A place of its own among others, for who keeps count.
        self.number = -1
        self.left: Any = None
        self.host = torch.empty_strided(
            tensor.size(),
            tensor.stride(),
            dtype=tensor.dtype,
            device="cpu",
            # Only from and to such memory copies run beside what is computed.
            pin_memory=tensor.device.type == "cuda",
        )

    @property
    def nbytes(self) -> int:
        """What it takes on either side."""
        return int(self.host.nbytes)

    def empty(self, device: Any) -> Any:
        """Room for it on the device."""
        host = self.host
        return self._torch.empty_strided(host.size(), host.stride(), dtype=host.dtype, device=device)


def window_of(torch: Any, device: Any) -> int:
    """How much may be under way each way on this device."""
    if device.type != "cuda":
        return _WINDOW_BYTES
    return min(_WINDOW_BYTES, int(_WINDOW_SHARE * torch.cuda.get_device_properties(device).total_memory))


def is_plain(torch: Any, tensor: Any) -> bool:
    """Whether it can be laid down elsewhere just as it lies: without gaps, and no other's kind of tensor."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        return False
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return bool(reach == tensor.numel())


def host_has_room(more_bytes: int) -> bool:
    """Whether the host can give so much and keep some: a machine without memory ends more than this job."""
    try:
        from flatout.hardware.host import available_memory_bytes

        return available_memory_bytes() - more_bytes > _LEFT_TO_THE_HOST
    except (ImportError, OSError):
        return True
