"""AMD's device source: picks the way to the GPUs that works on this machine and keeps to it."""

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from flatout.hardware.amd.answers import describe, load_amdsmi
from flatout.hardware.amd.conversions import down
from flatout.hardware.amd.through_amdsmi import AmdSmi
from flatout.hardware.amd.through_rocm_smi import NOT_INSTALLED, RocmSmi, RocmSmiFailed
from flatout.hardware.command import RunTool, run_tool
from flatout.hardware.deadline import DeadlinePassed, Pending, Worker
from flatout.hardware.protocol import Discovery, Problem
from flatout.records.device import Device, DeviceSample, Vendor

OPEN_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 5.0
_FIX_LIBRARY = (
    "sudo modprobe amdgpu; ls -l /dev/kfd /dev/dri/render*   # this user needs the groups render and video"
)
_FIX_TOOL = "rocm-smi --showproductname   # run it by hand; look at `sudo dmesg | grep amdgpu`"


class AmdSource:
    """AMD's GPUs. `library` stands in for the amdsmi module; without it, amdsmi is imported when needed."""

    def __init__(
        self,
        library: Any | None = None,
        run: RunTool = run_tool,
        *,
        load: Callable[[], Any] = load_amdsmi,
        clock: Callable[[], float] = time.time,
        read_timeout_s: float = READ_TIMEOUT_S,
    ) -> None:
        self._load = load if library is None else lambda: library
        self._rocm_smi = RocmSmi(run, clock=clock)
        self._clock = clock
        self._read_timeout_s = read_timeout_s
        self._session: AmdSmi | None = None
        self._session_pid = 0
        self._workers: dict[int, Worker] = {}
        self._last: dict[int, DeviceSample] = {}

    @property
    def vendor(self) -> Vendor:
        """Whose devices these are."""
        return "amd"

    def discover(self) -> Discovery:
        """The GPUs, through amdsmi if it works, else through rocm-smi."""
        session, reason, broken = self._open()
        if session is not None:
            return self._discover_through(session)
        problem = Problem(code="amd.amdsmi_failed", evidence=reason, fix=_FIX_LIBRARY)
        try:
            devices = self._rocm_smi.devices()
        except RocmSmiFailed as error:
            if str(error) == NOT_INSTALLED and not broken:
                return Discovery(absent_reason=f"{reason}, and {error}")
            if str(error) == NOT_INSTALLED:
                return Discovery(problems=(problem,))
            evidence = f"{error}; {reason}"
            return Discovery(problems=(Problem(code="amd.unreadable", evidence=evidence, fix=_FIX_TOOL),))
        return Discovery(devices=devices, problems=(problem,) if broken else ())

    def sample(self, devices: Sequence[Device], *, thoroughly: bool = True) -> list[DeviceSample]:  # noqa: ARG002
        """One sample for each of these devices, in order."""
        session, _, _ = self._open()
        if session is None:
            return self._rocm_smi.samples(tuple(devices))
        deadline = time.monotonic() + self._read_timeout_s  # of all: several that block are waited for once
        waiting = [(device, self._submit(session, device)) for device in devices]
        samples = [self._collect(device, pending, deadline) for device, pending in waiting]
        if samples and all(sample.state == "down" for sample in samples):
            # Every GPU at once is what a reloaded driver looks like: the next call starts a new session.
            self.close()
        return samples

    def close(self) -> None:
        """End the amdsmi session, if there is one. A forked child leaves its parent's alone."""
        session, self._session = self._session, None
        if session is None or self._session_pid != os.getpid():
            return
        try:
            self._worker(-1).call(session.close, OPEN_TIMEOUT_S)
        except DeadlinePassed:
            return

    def _open(self) -> tuple[AmdSmi | None, str, bool]:
        """A session; or none, why not, and whether that is a fault rather than a missing package."""
        if self._session is not None and self._session_pid == os.getpid():
            return self._session, "", False
        try:
            session = AmdSmi(self._load(), clock=self._clock)
        except ImportError as error:
            return None, str(error), False
        try:
            self._worker(-1).call(session.open, OPEN_TIMEOUT_S)
        except DeadlinePassed as error:
            return None, f"amdsmi does not start: {error}", True
        except session.errors as error:
            return None, f"amdsmi does not start: {describe(error)}", True
        self._session, self._session_pid = session, os.getpid()
        return session, "", False

    def _discover_through(self, session: AmdSmi) -> Discovery:
        if not session.count:
            return Discovery(absent_reason="amdsmi finds no AMD GPU")
        deadline = time.monotonic() + self._read_timeout_s
        waiting = [(index, self._ask_who(session, index)) for index in range(session.count)]
        devices = tuple(self._device(index, pending, deadline) for index, pending in waiting)
        problems = tuple(
            Problem(
                code="amd.unreadable",
                evidence=f"GPU {device.index} does not answer: {device.unknown['uuid']}",
                fix=_FIX_TOOL,
            )
            for device in devices
            if device.uuid is None and device.memory_total_bytes is None
        )
        return Discovery(devices=devices, problems=problems)

    def _ask_who(self, session: AmdSmi, index: int) -> Pending[Device] | DeadlinePassed:
        try:
            return self._worker(index).submit(lambda: session.device(index))
        except DeadlinePassed as error:
            return error

    def _device(self, index: int, pending: Pending[Device] | DeadlinePassed, deadline: float) -> Device:
        try:
            if isinstance(pending, DeadlinePassed):
                raise pending
            return self._worker(index).wait(pending, deadline - time.monotonic())
        except DeadlinePassed as error:
            name = f"AMD GPU (name unknown: {error})"
            return Device(index=index, vendor="amd", name=name, unknown={"uuid": str(error)})

    def _submit(self, session: AmdSmi, device: Device) -> Pending[DeviceSample] | DeadlinePassed:
        try:
            return self._worker(device.index).submit(lambda: session.sample(device))
        except DeadlinePassed as error:
            return error

    def _collect(
        self, device: Device, pending: Pending[DeviceSample] | DeadlinePassed, deadline: float
    ) -> DeviceSample:
        """The sample; when the driver is late, the last good one marked as stale."""
        try:
            if isinstance(pending, DeadlinePassed):
                raise pending
            sample = self._worker(device.index).wait(pending, deadline - time.monotonic())
        except DeadlinePassed as error:
            last = self._last.get(device.index)
            if last is None:
                return down(device, self._clock(), str(error))
            return dataclasses.replace(last, state="stale", state_reason=str(error))
        if sample.state == "up":
            self._last[device.index] = sample
        return sample

    def _worker(self, index: int) -> Worker:
        """One thread a GPU, so that a wedged one does not hold up the others; -1 is the library's own."""
        return self._workers.setdefault(index, Worker(f"flatout-amdsmi-{index}"))
