"""At the moment when there is no memory left: what held it, noted before the job goes.

torch's allocator tells observers that it is about to give up. What it holds then is in its own snapshot, with
the lines that asked for it where their stacks were kept (allocation_stacks.py).
"""

import json
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any

from flatout.inside.allocation_stacks import AllocationStacks
from flatout.inside.calls import Files, way_of
from flatout.inside.out_of_memory import is_out_of_memory
from flatout.inside.snapshot_file import keep_snapshot
from flatout.levers.places import is_users_file
from flatout.records.session import OUT_OF_MEMORY_FILE, OUT_OF_MEMORY_SNAPSHOT

if TYPE_CHECKING:
    from flatout.inside.session import Session

_HOLDERS, _STACKS = 40, 200


class AutopsyTap:
    """Waits for the worst."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._hook: Any = None
        self._noted = False
        self._stacks = AllocationStacks(session.torch)

    def install(self) -> None:
        """See an exception that ends the job, and the device's allocator as soon as there is one."""
        self._hook = sys.excepthook
        sys.excepthook = self._at_the_end
        cuda = self._session.torch.cuda
        if cuda.is_available():
            cuda._lazy_call(self._watch_the_device)  # noqa: SLF001

    def remove(self) -> None:
        """The script's own hook, where nobody has put another on top."""
        if sys.excepthook == self._at_the_end:
            sys.excepthook = self._hook
        self._stacks.end()

    def look(self) -> None:
        """After some of the updates."""
        session = self._session
        if session.on_gpu and session.device is not None:
            self._stacks.look(session.updates, session.device)

    def _watch_the_device(self) -> None:
        try:
            self._session.torch._C._cuda_attach_out_of_memory_observer(self._on_device)  # noqa: SLF001
            self._stacks.begin()
        except Exception as error:  # noqa: BLE001 - an older torch, or the script records itself
            self._session.fail("autopsy", error)

    def _on_device(self, device: int, asked: int, total: int, free: int) -> None:
        try:
            torch = self._session.torch
            snapshot = torch.cuda.memory._snapshot(device)  # noqa: SLF001
            owned = owners(self._session.optimizers(), self._session.roots())
            found = held(snapshot, owned, Files(torch))
            stats = torch.cuda.memory_stats(device)
            self._write(
                {
                    "message": f"{asked} bytes were asked for",
                    "on_gpu": True,
                    "asked_bytes": asked,
                    "device_bytes": total,
                    "free_bytes": free,
                    "allocated_bytes": stats["allocated_bytes.all.current"],
                    "reserved_bytes": stats["reserved_bytes.all.current"],
                    "stacks_kept": self._stacks.are_kept,
                    **found,
                }
            )
            keep_snapshot(snapshot, self._session.folder() / OUT_OF_MEMORY_SNAPSHOT)
        except Exception as error:  # noqa: BLE001 - the job has trouble enough
            self._session.fail("autopsy", error)

    def _at_the_end(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            if is_out_of_memory(error) and not self._noted:
                self._write({"message": str(error)[:2000], "on_gpu": self._session.on_gpu})
        except Exception as problem:  # noqa: BLE001 - the job has trouble enough
            self._session.fail("autopsy", problem)
        self._hook(kind, error, traceback)

    def _write(self, document: dict[str, Any]) -> None:
        session = self._session
        phase = "backward" if session.in_backward else "forward" if session.busy else ""
        document |= {"where": _where_now(), "phase": phase, "updates": session.updates}
        path = session.folder() / OUT_OF_MEMORY_FILE
        part = path.with_suffix(".part")
        part.write_text(json.dumps(document))
        part.rename(path)
        self._noted = True


def owners(optimizers: list[Any], roots: list[Any]) -> dict[int, str]:
    """By address, what is no activation."""
    found: dict[int, str] = {}
    for root in roots:
        for value in (*root.parameters(), *root.buffers()):
            _own(found, "parameters", value)
            _own(found, "gradients", value.grad)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                _own(found, "parameters", parameter)
                _own(found, "gradients", parameter.grad)
                for value in optimizer.state.get(parameter, {}).values():
                    _own(found, "optimizer", value)
    return found


def held(snapshot: dict[str, Any], owners: dict[int, str], files: Files) -> dict[str, Any]:
    """What an allocator's snapshot says of who holds what."""
    parts: dict[str, int] = {}
    lines: dict[tuple[str, str], list[int]] = {}
    stacks: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    cached = largest = 0
    for segment in snapshot["segments"]:
        address = segment["address"]
        for block in segment["blocks"]:
            size = block["size"]
            if block["state"] != "active_allocated":
                cached += size
                largest = max(largest, size)
            else:
                category = owners.get(address, "activations")
                parts[category] = parts.get(category, 0) + size
                line, calls = way_of(_calls(block.get("frames", ()), files))
                _count(lines, (category, line or ""), size)
                _count(stacks, (category, calls), size)
            address += size
    return {
        "parts": parts,
        "cached_bytes": cached,
        "largest_cached_bytes": largest,
        "holders": [
            {"category": category, "where": where, "size_bytes": size, "count": count}
            for (category, where), (size, count) in _largest(lines, _HOLDERS)
        ],
        "stacks": [
            {"category": category, "frames": calls, "size_bytes": size, "count": count}
            for (category, calls), (size, count) in _largest(stacks, _STACKS)
        ],
    }


def _count(sums: dict[Any, list[int]], key: Any, size: int) -> None:
    both = sums.setdefault(key, [0, 0])
    both[0] += size
    both[1] += 1


def _largest(sums: dict[Any, list[int]], most: int) -> list[tuple[Any, list[int]]]:
    return sorted(sums.items(), key=lambda item: -item[1][0])[:most]


def _own(found: dict[int, str], category: str, value: Any) -> None:
    if hasattr(value, "untyped_storage"):
        found[value.untyped_storage().data_ptr()] = category


def _calls(frames: Any, files: Files) -> list[tuple[bool, str]]:
    """A block's calls, the innermost first, each with whether it is the user's own."""
    return [
        (is_users, f"{frame['filename']}:{frame['line']} in {frame['name']}")
        for frame in frames
        if (is_users := files.is_users(frame["filename"])) is not None
    ]


def _where_now() -> str:
    """Where the script is; a GPU's gradients have a thread of their own, with nothing of the script in it."""
    main = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001
    return _users_line(sys._getframe()) or _users_line(main)  # noqa: SLF001


def _users_line(frame: FrameType | None) -> str:
    while frame is not None:
        code = frame.f_code
        if is_users_file(code.co_filename):
            return f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}"
        frame = frame.f_back
    return ""
