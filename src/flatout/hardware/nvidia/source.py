"""NVIDIA's devices for the rest of Flatout: discovery and samples that survive what drivers do."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

from flatout.hardware.deadline import DeadlinePassed, Pending, Worker
from flatout.hardware.nvidia.gpm import GpmReader
from flatout.hardware.nvidia.identity import lost_device, mig_handles, read_device, read_mig_instance
from flatout.hardware.nvidia.reading import describe_error
from flatout.hardware.nvidia.sampling import NO_XID, read_sample
from flatout.hardware.nvidia.session import (
    GPU_IS_LOST,
    NOT_FOUND,
    RESET_REQUIRED,
    NvmlSession,
    NvmlUnavailable,
    error_code,
)
from flatout.hardware.nvidia.xid import XidCounter
from flatout.hardware.protocol import Discovery, Problem
from flatout.records.device import Device, DeviceSample, Vendor

CALL_TIMEOUT_S = 2.0
# The first handle of a GPU without persistence wakes it up, which takes seconds a card.
FIRST_CONTACT_S = 45.0
# The counter of energy alone takes 5 ms of a core (seen on an H200).
ENERGY_EVERY_S = 30.0
LOADED_BUT_EMPTY = "the NVIDIA driver is loaded and shows no GPU"
_DEVICE_GONE = frozenset({GPU_IS_LOST, RESET_REQUIRED, NOT_FOUND})


class NvidiaSource:
    """All NVIDIA GPUs and MIG instances that NVML shows.

    Each device has its own thread: one that blocks in the driver makes its own sample stale and
    leaves the others alone.
    """

    vendor: Vendor = "nvidia"

    def __init__(
        self,
        library: Any = None,
        *,
        session: NvmlSession | None = None,
        call_timeout_s: float = CALL_TIMEOUT_S,
        first_contact_s: float = FIRST_CONTACT_S,
        energy_every_s: float = ENERGY_EVERY_S,
        now_unix_s: Callable[[], float] = time.time,
    ) -> None:
        self._session = session or NvmlSession(library)
        self._call_timeout_s = call_timeout_s
        self._first_contact_s = first_contact_s
        self._energy_every_s = energy_every_s
        self._now_unix_s = now_unix_s
        self._workers: dict[str, Worker] = {}
        self._handles: dict[str, Any] = {}
        self._gpm: dict[str, GpmReader | None] = {}
        self._last: dict[str, DeviceSample] = {}
        # What brief samples take their slow fields from.
        self._thorough: dict[str, DeviceSample] = {}
        # The sample with which the counter of energy was read.
        self._energy: dict[str, DeviceSample] = {}
        self._known: dict[int, Device] = {}
        self._xids: XidCounter | None = None
        self._generation = 0

    def discover(self) -> Discovery:
        """The GPUs, in NVML's order (by PCI bus), each followed by its MIG instances."""
        try:
            self._ensure_session()
            count = self._worker("count").call(
                lambda: int(self._session.library.nvmlDeviceGetCount()), self._call_timeout_s
            )
        except NvmlUnavailable as error:
            if error.absent:
                return Discovery(absent_reason=error.problem.evidence)
            return Discovery(absent_reason="NVIDIA's driver does not answer", problems=(error.problem,))
        except (self._session.error, DeadlinePassed) as error:
            return Discovery(absent_reason="NVIDIA's driver does not answer", problems=(_lost(-1, error),))
        if count == 0:
            return Discovery(absent_reason=LOADED_BUT_EMPTY)
        # Whoever has answered before is awake: one that blocks now must not hold up the others.
        known = all(position in self._known for position in range(count))
        deadline = time.monotonic() + (self._call_timeout_s if known else self._first_contact_s)
        started = [(position, self._identify(position)) for position in range(count)]
        devices: list[Device] = []
        problems: list[Problem] = []
        for position, pending in started:
            self._identified(position, pending, deadline, devices, problems)
        return Discovery(devices=tuple(devices), problems=tuple(problems))

    def sample(self, devices: Sequence[Device], *, thoroughly: bool = True) -> list[DeviceSample]:
        """All devices at once, within one deadline."""
        try:
            self._ensure_session()
            if thoroughly:
                self._poll_xids(devices)
        except NvmlUnavailable as error:
            return [self._stale_or_down(device, str(error)) for device in devices]
        deadline = time.monotonic() + self._call_timeout_s
        if thoroughly:
            self._thorough = {}
        started = [self._start(device) for device in devices]
        outcomes = [
            self._finish(device, pending, deadline) for device, pending in zip(devices, started, strict=True)
        ]
        errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        if len(errors) < len(outcomes):
            self._session.confirm()
        if errors and len(errors) == len(outcomes) and all(_session_is_broken(error) for error in errors):
            self._drop_gpm()  # while there is a session to give its samples back to
            self._session.lose(errors[0])
        return [
            outcome if isinstance(outcome, DeviceSample) else self._failed(device, outcome)
            for device, outcome in zip(devices, outcomes, strict=True)
        ]

    def close(self) -> None:
        """End the NVML session."""
        self._drop_gpm()
        self._session.close()

    def _drop_gpm(self) -> None:
        for reader in self._gpm.values():
            if reader is not None:
                with contextlib.suppress(self._session.error):
                    reader.close()
        self._gpm = {}

    def _identify(self, position: int) -> Pending[list[Device]] | DeadlinePassed:
        """Ask who the GPU at this position is, in its own thread; all are asked at once."""
        library = self._session.library

        def identify() -> list[Device]:
            handle = library.nvmlDeviceGetHandleByIndex(position)
            device = read_device(library, handle, position)
            instances = mig_handles(library, handle) if device.mig_enabled else ()
            return [
                device,
                *(read_mig_instance(library, instance, device, slot) for slot, instance in instances),
            ]

        try:
            return self._worker(f"index-{position}").submit(identify)
        except DeadlinePassed as error:
            return error

    def _identified(
        self,
        position: int,
        pending: Pending[list[Device]] | DeadlinePassed,
        deadline: float,
        devices: list[Device],
        problems: list[Problem],
    ) -> None:
        try:
            if isinstance(pending, DeadlinePassed):
                raise pending
            found = self._worker(f"index-{position}").wait(pending, deadline - time.monotonic())
        except (self._session.error, DeadlinePassed) as error:
            problem = _lost(position, error)
            problems.append(problem)
            devices.append(self._known.get(position) or lost_device(position, problem.evidence))
            return
        self._known[position] = found[0]
        devices.extend(found)

    def _ensure_session(self) -> None:
        self._session.ensure()
        if self._generation != self._session.generation:
            self._generation = self._session.generation
            self._handles = {}
            self._thorough = {}
            self._energy = {}
            self._drop_gpm()
            if self._xids is not None:
                self._xids.forget_session()

    def _start(self, device: Device) -> Pending[DeviceSample] | Exception:
        try:
            return self._worker(_key(device)).submit(lambda: self._read(device))
        except DeadlinePassed as error:
            return error

    def _finish(
        self, device: Device, pending: Pending[DeviceSample] | Exception, deadline: float
    ) -> DeviceSample | Exception:
        if isinstance(pending, Exception):
            return pending
        try:
            sample = self._worker(_key(device)).wait(pending, deadline - time.monotonic())
        except (self._session.error, DeadlinePassed) as error:
            return error
        self._last[_key(device)] = sample
        self._thorough.setdefault(_key(device), sample)
        return sample

    def _counted(self, key: str, now_unix_s: float) -> DeviceSample | None:
        """The sample with its energy, if that was read not long ago; a clock may have been put back since."""
        read = self._energy.get(key)
        is_new = read is not None and 0 <= now_unix_s - read.taken_at_unix_s < self._energy_every_s
        return read if is_new else None

    def _read(self, device: Device) -> DeviceSample:
        library = self._session.library
        key = _key(device)
        handle = self._handle(device)
        if key not in self._gpm:
            self._gpm[key] = self._gpm_reader(library, handle, device)
        now_unix_s, earlier = self._now_unix_s(), self._thorough.get(key)
        counted = self._counted(key, now_unix_s)
        sample = read_sample(
            library,
            handle,
            device,
            self._gpm[key],
            now_unix_s,
            earlier=earlier,
            counted=counted,
            xids=self._xids.count(device.uuid or "") if self._xids else None,
        )
        if earlier is None and counted is None:
            self._energy[key] = sample
        return sample

    def _handle(self, device: Device) -> Any:
        key = _key(device)
        if key not in self._handles:
            library = self._session.library
            self._handles[key] = (
                library.nvmlDeviceGetHandleByUUID(device.uuid)
                if device.uuid
                else library.nvmlDeviceGetHandleByIndex(device.index)
            )
        return self._handles[key]

    def _gpm_reader(self, library: Any, handle: Any, device: Device) -> GpmReader | None:
        if device.parent_uuid or device.mig_enabled:
            return None
        try:
            return GpmReader(library, handle)
        except (library.NVMLError, AttributeError):
            return None  # the sample says that GPM is missing

    def _poll_xids(self, devices: Sequence[Device]) -> None:
        library = self._session.library
        if self._xids is None:
            self._xids = XidCounter(library)
        counter = self._xids

        def poll() -> None:
            if not counter.watching:
                counter.watch([device for device in devices if device.uuid], self._handle)
            counter.poll()

        try:
            self._worker("xid").call(poll, self._call_timeout_s)
        except (self._session.error, DeadlinePassed, AttributeError):
            return  # counts stay as they are; a device that was never watched stays unknown

    def _with_xids(self, device: Device, sample: DeviceSample) -> DeviceSample:
        """Of a GPU that cannot be read any more: its Xids still count."""
        counted = self._xids.count(device.uuid or "") if self._xids else None
        if counted is None:
            return sample
        total, last = counted
        unknown = {name: why for name, why in sample.unknown.items() if name not in ("xid_count", "xid_last")}
        if last is None:
            unknown["xid_last"] = NO_XID
        return dataclasses.replace(sample, xid_count=total, xid_last=last, unknown=unknown)

    def _failed(self, device: Device, error: Exception) -> DeviceSample:
        reason = str(error) if isinstance(error, DeadlinePassed) else describe_error(error)
        for kept in (self._thorough, self._energy):
            kept.pop(_key(device), None)  # whoever comes back is read from the beginning
        if error_code(error) in _DEVICE_GONE:
            self._handles.pop(_key(device), None)
            return self._down(device, reason)
        return self._stale_or_down(device, reason)

    def _stale_or_down(self, device: Device, reason: str) -> DeviceSample:
        last = self._last.get(_key(device))
        if last is None:
            return self._down(device, reason)
        return dataclasses.replace(last, state="stale", state_reason=reason)

    def _down(self, device: Device, reason: str) -> DeviceSample:
        sample = DeviceSample(
            index=device.index,
            uuid=device.uuid,
            taken_at_unix_s=self._now_unix_s(),
            state="down",
            state_reason=reason,
            unknown={"uuid": reason} if device.uuid is None else {},
        )
        return self._with_xids(device, sample)

    def _worker(self, name: str) -> Worker:
        return self._workers.setdefault(name, Worker(f"flatout-nvml-{name}"))


def _key(device: Device) -> str:
    return device.uuid or f"index-{device.index}"


def _session_is_broken(error: Exception) -> bool:
    """Lost GPUs and slow calls are a device's own trouble; the rest is mended by a new session, if at all."""
    return error_code(error) >= 0 and error_code(error) not in _DEVICE_GONE


def _lost(position: int, error: Exception) -> Problem:
    which = f"GPU {position}" if position >= 0 else "NVML"
    if isinstance(error, DeadlinePassed):
        return Problem(
            code="nvidia.blocked",
            evidence=f"{which}: {error}",
            fix="nvidia-smi   # if it hangs too, the driver is wedged: look at dmesg, then reboot",
        )
    return Problem(
        code="nvidia.gpu_lost",
        evidence=f"{which} does not answer: {describe_error(error)}",
        fix="dmesg | grep -i xid   # then reset the GPU (sudo nvidia-smi --gpu-reset) or reboot",
    )
