"""What a loop holds at an instant, in one number.

On a GPU it is what torch has given out. On the host it is what the C library has given out, where it tells:
tensors come from there, and so do the nodes of graphs. What the process has in all is a poor witness: memory
that was freed stays with it, and what leaks goes there first.
"""

import ctypes
import os
from typing import Any, Literal, Protocol

from flatout.inside.memory import host_bytes

_STATUS = "/proc/self/statm"
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TRIED_BYTES = 4 << 20


class Counter(Protocol):
    """One of them."""

    # A device as torch names it, and its kind.
    device: str
    kind: str
    counted: Literal["allocated", "malloc", "resident"]
    # Bytes: less than this in a step, or altogether, is chance.
    least_a_step: int
    least: int

    def read(self) -> int | None:
        """Now; None where nobody tells."""

    def about(self) -> dict[str, Any]:
        """What else is known of the memory, by the names that a report has for it."""

    def close(self) -> None:
        """Nothing more will be read."""


class GpuMemory:
    """Bytes of tensors on one GPU, by torch's own count."""

    kind = "cuda"
    counted: Literal["allocated", "malloc", "resident"] = "allocated"
    least_a_step = least = 0

    def __init__(self, torch: Any, index: int) -> None:
        self._torch = torch
        self._index = index
        self.device = f"cuda:{index}"

    def read(self) -> int:
        """Now."""
        stats = self._torch.cuda.memory_stats_as_nested_dict(self._index)
        return int(stats["allocated_bytes"]["all"]["current"])

    def about(self) -> dict[str, Any]:
        """What the allocator has: all of it, its largest free piece, and what cannot be joined."""
        stats = self._torch.cuda.memory_stats_as_nested_dict(self._index)
        reserved = int(stats["reserved_bytes"]["all"]["current"])
        pieces = int(stats["inactive_split_bytes"]["all"]["current"])
        free = (
            block["size"]
            for segment in self._torch.cuda.memory_snapshot()
            if segment["device"] == self._index
            for block in segment["blocks"]
            if block["state"] == "inactive"
        )
        return {
            "reserved_bytes": reserved,
            "largest_free_bytes": max(free, default=0),
            "fragmented_share": pieces / reserved if reserved else 0.0,
        }

    def close(self) -> None:
        """Nothing was opened."""


class _Mallinfo(ctypes.Structure):
    """The C library's `struct mallinfo2`; in use are `uordblks`, and `hblkhd` of large blocks."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    ]


class MallocMemory:
    """Bytes that the C library has given out and not got back: exact, but slow where they lie scattered."""

    kind = device = "cpu"
    counted: Literal["allocated", "malloc", "resident"] = "malloc"
    least_a_step, least = 256, 64 << 10

    def __init__(self, torch: Any) -> None:
        self._call = ctypes.CDLL(None).mallinfo2
        self._call.restype = _Mallinfo
        before = self.read()
        kept = torch.empty(_TRIED_BYTES, dtype=torch.uint8, device="cpu")
        if self.read() - before < kept.numel():
            raise OSError("tensors come from another allocator")

    def read(self) -> int:
        """Now."""
        info = self._call()
        return int(info.uordblks + info.hblkhd)

    def about(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def close(self) -> None:
        """Nothing was opened."""


class ResidentMemory:
    """Resident bytes of this process, from a file that stays open: to open it costs most of a look."""

    kind = device = "cpu"
    counted: Literal["allocated", "malloc", "resident"] = "resident"
    least_a_step, least = 256, 1 << 20

    def __init__(self) -> None:
        self._process = os.getpid()
        try:
            self._file: int | None = os.open(_STATUS, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # not Linux
            self._file = None

    def read(self) -> int | None:
        """Now; None where the kernel does not tell."""
        if self._file is None or os.getpid() != self._process:  # in a forked child it is the parent's
            return host_bytes()
        return int(os.pread(self._file, 100, 0).split()[1]) * _PAGE

    def about(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def counter_for(torch: Any, wanted: Any) -> Counter:
    """Of a device as torch names it, or by default of the GPU that is in use."""
    device = torch.device(wanted) if wanted is not None else None
    on_gpu = device.type == "cuda" if device is not None else torch.cuda.is_initialized()
    if on_gpu:
        index = device.index if device is not None else None
        return GpuMemory(torch, torch.cuda.current_device() if index is None else index)
    try:
        return MallocMemory(torch)
    except (AttributeError, OSError, RuntimeError):  # another C library, or another allocator
        return ResidentMemory()
