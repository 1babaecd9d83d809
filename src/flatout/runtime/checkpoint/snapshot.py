"""Copies of tensors as they are at one step, in memory that the writer shares; training goes on meanwhile.

Tensors of a GPU are copied there first, which takes milliseconds, and travel to the host on a stream of their
own. Where the GPU has no room for that, they travel at once, in the training's own stream. Tensors of the
host are copied at once.
"""

import contextlib
import itertools
import threading
from collections.abc import Callable
from typing import Any

from flatout.runtime.checkpoint.device_copies import copies_of
from flatout.runtime.checkpoint.layout import Layout
from flatout.runtime.checkpoint.plain import Ref
from flatout.runtime.checkpoint.writing import SharedMemory

# Of a GPU's memory, what is left free beside a copy of the state.
_LEAVE_FREE = 0.05
# The driver does nothing else for the process while it pins: so much at a time.
_PIECE = 512 << 20


class Snapshot:
    """One copy under way; `wait()` until all of it is in shared memory."""

    def __init__(self, thread: threading.Thread | None = None) -> None:
        self._thread = thread
        self.problem: BaseException | None = None

    @property
    def is_done(self) -> bool:
        """Whether it is all there."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> None:
        """Until it is all there; raises what went wrong."""
        if self._thread is not None:
            self._thread.join()
        if self.problem is not None:
            raise self.problem


class Copier:
    """Copies states into shared memory, one at a time."""

    def __init__(self, torch: Any, memory: SharedMemory) -> None:
        self._torch = torch
        self._memory = memory
        self._whole: Any = None
        # Addresses of the pieces that are pinned; None before that was tried.
        self._pinned: list[int] | None = None
        self._streams: dict[Any, Any] = {}

    def copy(self, tensors: dict[Ref, Any], layout: Layout, then: Callable[[], None]) -> Snapshot:
        """Begin to copy; `then` is called when all of it is there, from another thread if later."""
        on_gpu = {ref: one for ref, one in tensors.items() if one.device.type == "cuda"}
        here = {ref: one for ref, one in tensors.items() if ref not in on_gpu}
        # Before anything else: training may change them as soon as this returns.
        kept = self._kept_on_their_device(on_gpu, layout)
        if not on_gpu:
            self._make_room(layout, pin=False)
            for ref, tensor in here.items():
                self._view(layout, ref, tensor).copy_(tensor)
            then()
            return Snapshot()
        # Those of the host cannot wait for memory to be pinned, which takes seconds the first time.
        held = {ref: one.clone() for ref, one in here.items()}
        snapshot = Snapshot()

        def travel() -> None:
            try:
                self._make_room(layout, pin=True)
                for ref, tensor in held.items():
                    self._view(layout, ref, tensor).copy_(tensor)
                self._fetch(kept, layout)
                then()
            except BaseException as error:  # noqa: BLE001 - handed to whoever waits
                snapshot.problem = error

        thread = threading.Thread(target=travel, name="flatout-checkpoint", daemon=True)
        snapshot._thread = thread  # noqa: SLF001
        thread.start()
        return snapshot

    def _kept_on_their_device(self, tensors: dict[Ref, Any], layout: Layout) -> dict[Ref, tuple[Any, Any]]:
        """Copies on the GPU, or on their way, each with the event after which it is there."""
        torch = self._torch
        kept: dict[Ref, tuple[Any, Any]] = {}
        for device in {one.device for one in tensors.values()}:
            some = {ref: one for ref, one in tensors.items() if one.device == device}
            size = sum(one.numel() * one.element_size() for one in some.values())
            with torch.cuda.device(device), torch.no_grad():
                stream = torch.cuda.current_stream(device)
                event = torch.cuda.Event()
                copies = self._copies_there(device, some, size)
                if copies is None:
                    self._make_room(layout, pin=True)
                    for ref, tensor in some.items():
                        self._send(layout, ref, tensor)
                    copies = dict.fromkeys(some)
                kept |= {ref: (copy, event) for ref, copy in copies.items()}
                event.record(stream)
        return kept

    def _copies_there(self, device: Any, tensors: dict[Ref, Any], size: int) -> dict[Ref, Any] | None:
        """On the same device, where training has room for as much as it ever held besides; else None."""
        cuda = self._torch.cuda
        free, total = cuda.mem_get_info(device)
        reserved, peak = cuda.memory_reserved(device), cuda.max_memory_allocated(device)
        least = _LEAVE_FREE * total
        if free + reserved - peak - size < least:
            return None
        try:
            if reserved - cuda.memory_allocated(device) < size and free - size > least:
                # One request to the driver, which all of the copies then share.
                self._torch.empty(size + 512 * len(tensors), dtype=self._torch.uint8, device=device)
            return dict(zip(tensors, copies_of(self._torch, list(tensors.values())), strict=True))
        except cuda.OutOfMemoryError:  # what is cached lies in pieces, or others took the rest
            return None

    def _fetch(self, kept: dict[Ref, tuple[Any, Any]], layout: Layout) -> None:
        torch = self._torch
        for ref in list(kept):
            copy, event = kept.pop(ref)
            if copy is None:
                event.synchronize()
                continue
            device = copy.device
            stream = self._streams.get(device)
            if stream is None:
                stream = self._streams[device] = torch.cuda.Stream(device)
            with torch.cuda.device(device), torch.cuda.stream(stream):
                stream.wait_event(event)
                self._send(layout, ref, copy)
                copy.record_stream(stream)
        for stream in self._streams.values():
            stream.synchronize()

    def _make_room(self, layout: Layout, *, pin: bool) -> None:
        if self._memory.hold(layout.size) or (self._whole is None and layout.size):
            self._unpin()
            self._whole = self._torch.frombuffer(self._memory.map, dtype=self._torch.uint8)
        if pin and self._pinned is None and self._whole is not None:
            self._pin()
        for file in layout.files:
            assert self._memory.map is not None
            self._memory.map[file.start : file.start + len(file.header)] = file.header

    def _view(self, layout: Layout, ref: Ref, tensor: Any) -> Any:
        place = layout.places[ref]
        flat = self._whole[place.start : place.start + place.size]
        return flat.view(tensor.dtype).view(tensor.shape)

    def _send(self, layout: Layout, ref: Ref, tensor: Any) -> None:
        """From the GPU to its place, in the current stream; no copy reaches into another pinned piece."""
        place = layout.places[ref]
        borders = range(place.start // _PIECE * _PIECE + _PIECE, place.start + place.size, _PIECE)
        if not borders:
            self._view(layout, ref, tensor).copy_(tensor, non_blocking=True)
            return
        flat = tensor.contiguous().view(-1).view(self._torch.uint8)
        for begin, end in itertools.pairwise((place.start, *borders, place.start + place.size)):
            part = flat[begin - place.start : end - place.start]
            self._whole[begin:end].copy_(part, non_blocking=True)

    def _pin(self) -> None:
        """So that copies from the GPU go at full speed, and meanwhile; without it they only take longer."""
        self._pinned = []
        with contextlib.suppress(Exception):
            for begin in range(0, self._whole.numel(), _PIECE):
                piece = self._whole[begin : begin + _PIECE]
                piece.zero_()  # its pages exist now: to pin them keeps the driver for less long
                code = self._torch.cuda.cudart().cudaHostRegister(piece.data_ptr(), piece.numel(), 0)
                if int(code) != 0:
                    self._forget_the_error()
                    return
                self._pinned.append(piece.data_ptr())

    def _forget_the_error(self) -> None:
        """It waits for the next kernel of this thread, which fails with it: let that be one of ours."""
        with contextlib.suppress(Exception):
            self._torch.ones(1, device="cuda")

    def _unpin(self) -> None:
        for pointer in self._pinned or ():
            with contextlib.suppress(Exception):
                self._torch.cuda.cudart().cudaHostUnregister(pointer)
        self._pinned = None

    def close(self) -> None:
        """Give memory back."""
        self._unpin()
        self._whole = None
