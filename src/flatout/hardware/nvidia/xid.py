"""Counts Xid errors (the driver's critical events) per GPU while we run; a driver reload keeps the count."""

import contextlib
import ctypes
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from flatout.hardware.nvidia.reading import text
from flatout.hardware.nvidia.session import TIMEOUT, error_code
from flatout.records.device import Device

# A burst longer than this is read on in the next poll, so that one poll stays short.
_EVENTS_PER_POLL = 64


@dataclasses.dataclass
class _Count:
    total: int = 0
    last: int | None = None


class XidCounter:
    """One event set per session; counts are kept by UUID, outside of any session."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._counts: dict[str, _Count] = {}
        # By the addresses of handles: a GPU that has fallen off its bus does not even say its name.
        self._registered: dict[Any, str] = {}
        self._event_set: Any = None

    def watch(self, devices: Iterable[Device], handle_of: Callable[[Device], Any]) -> None:
        """Register the devices of a new session; one that is lost keeps what is known of it."""
        event_set = self._library.nvmlEventSetCreate()
        self._registered = {}
        for device in devices:
            try:
                handle = handle_of(device)
                self._library.nvmlDeviceRegisterEvents(
                    handle, self._library.nvmlEventTypeXidCriticalError, event_set
                )
            except self._library.NVMLError:
                continue  # lost; or a MIG instance or a virtual GPU, which have no events
            self._registered[_address(handle)] = device.uuid or ""
        self._event_set = event_set

    @property
    def watching(self) -> bool:
        """False before the first session and after each loss of one."""
        return self._event_set is not None

    def poll(self) -> None:
        """Take what has happened since the last poll; does not wait."""
        if self._event_set is None:
            return
        for _ in range(_EVENTS_PER_POLL):
            try:
                event = self._library.nvmlEventSetWait_v2(self._event_set, 0)
            except self._library.NVMLError as error:
                if error_code(error) != TIMEOUT:
                    self._drop()
                    return
                break
            uuid = self._whose(event.device)
            if uuid is None:
                continue
            count = self._counts.setdefault(uuid, _Count())
            count.total += 1
            count.last = int(event.eventData)
        for uuid in self._registered.values():  # watched, and the wait works: from now on "none" is knowledge
            self._counts.setdefault(uuid, _Count())

    def count(self, uuid: str) -> tuple[int, int | None] | None:
        """(how many, the last one) since we began, or None where this device was never watched."""
        known = self._counts.get(uuid)
        return (known.total, known.last) if known is not None else None

    def forget_session(self) -> None:
        """The session is gone, and its event set with it; the counts stay."""
        self._event_set = None

    def _whose(self, handle: Any) -> str | None:
        known = self._registered.get(_address(handle))
        if known is not None:
            return known
        try:
            return text(self._library.nvmlDeviceGetUUID(handle))
        except self._library.NVMLError:
            return None

    def _drop(self) -> None:
        """Events cannot be waited for now: give the set back; who polls next watches anew."""
        with contextlib.suppress(self._library.NVMLError):
            self._library.nvmlEventSetFree(self._event_set)
        self._event_set = None


def _address(handle: Any) -> Any:
    """What tells handles apart: two pointers to one device are two objects."""
    is_pointer = isinstance(handle, ctypes._Pointer)  # noqa: SLF001 - ctypes has no other name for them
    return ctypes.cast(handle, ctypes.c_void_p).value if is_pointer else handle
