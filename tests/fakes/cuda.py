"""A CUDA device that gets on only as far as it is told, as `torch` would show it: streams, events, capture.

Work takes its time on a stream. An event is passed once the device's clock has come to the work before it;
asking about one while a graph is being captured spoils the capture, as on a real device.
"""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch


class CaptureSpoilt(RuntimeError):
    """What CUDA does to a capture when somebody asks a question meanwhile."""


class FakeCuda:
    """One device with some streams; times in milliseconds."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.capturing = False
        self.current = 7  # the number of the current stream
        self.busy_until: dict[int, float] = {}
        self.events: list[FakeEvent] = []
        self.device = SimpleNamespace(type="cuda", index=0)
        cuda = SimpleNamespace(
            is_current_stream_capturing=lambda: self.capturing,
            current_stream=lambda _device: SimpleNamespace(number=self.current),
            Event=self._event,
        )
        self.torch = SimpleNamespace(
            cuda=cuda,
            Tensor=FakeNumber,
            empty=lambda size, dtype, device, pin_memory: torch.full((size,), -1, dtype=dtype, device=device),
            inference_mode=torch.inference_mode,
            _C=SimpleNamespace(
                _cuda_getCurrentRawStream=lambda _index: self.current,
                TensorBase=SimpleNamespace(copy_=self._copy),
            ),
        )

    def work(self, ms: float, stream: int | None = None) -> None:
        """Queue some work."""
        number = self.current if stream is None else stream
        self.busy_until[number] = self.busy_until.get(number, 0.0) + ms

    def catch_up(self) -> None:
        """Let the device get to the end of everything."""
        self.now_ms = max([self.now_ms, *self.busy_until.values()])

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        """A graph is being captured."""
        self.capturing = True
        yield
        self.capturing = False

    @contextlib.contextmanager
    def on_stream(self, number: int) -> Iterator[None]:
        """Another stream is the current one."""
        before, self.current = self.current, number
        yield
        self.current = before

    def _event(self, *, enable_timing: bool = False) -> "FakeEvent":
        event = FakeEvent(self, timed=enable_timing)
        self.events.append(event)
        return event

    def _copy(self, place: torch.Tensor, number: Any, *, non_blocking: bool) -> None:
        assert non_blocking
        assert not self.capturing
        place.fill_(number.value)


class FakeEvent:
    """A place in a stream."""

    def __init__(self, cuda: FakeCuda, *, timed: bool) -> None:
        self._cuda = cuda
        self._timed = timed
        self.at_ms = 0.0
        self.records = 0

    def record(self, stream: Any) -> None:
        assert not self._cuda.capturing
        self.at_ms = self._cuda.busy_until.get(stream.number, 0.0)
        self.records += 1

    def query(self) -> bool:
        if self._cuda.capturing:
            raise CaptureSpoilt("operation not permitted when stream is capturing")
        return self.at_ms <= self._cuda.now_ms

    def elapsed_time(self, end: "FakeEvent") -> float:
        assert self._timed
        assert self.query(), "an event that the device has not passed"
        assert end.query(), "an event that the device has not passed"
        return end.at_ms - self.at_ms


class FakeNumber:
    """A tensor with one element (or more) that lies on a device."""

    def __init__(self, value: float, *, kind: str = "cuda", numel: int = 1, dim: int = 0) -> None:
        self.value = value
        self.device = SimpleNamespace(type=kind, index=0)
        self.shape = (1,) * dim if numel == 1 else (numel,)
        self.is_meta = False
        self.dtype = torch.float32 if isinstance(value, float) else torch.int64
        self._numel, self._dim = numel, dim

    def numel(self) -> int:
        return self._numel

    def is_complex(self) -> bool:
        return False

    def dim(self) -> int:
        return self._dim

    def detach(self) -> "FakeNumber":
        return self

    def reshape(self, shape: tuple[int, ...]) -> "FakeNumber":
        assert shape == ()
        return FakeNumber(self.value)
