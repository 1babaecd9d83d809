"""Runs the measuring child, listens to it, watches the clocks meanwhile, and makes one record of it all."""

import dataclasses
import datetime as dt
import importlib.metadata
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from flatout.hardware.catalogue import rated_for
from flatout.hardware.command import end_process_group
from flatout.hardware.protocol import DeviceSource
from flatout.limits.clocks import ClockWatch
from flatout.limits.store import METHOD
from flatout.limits.target import Target
from flatout.records.device import Device
from flatout.records.errors import ChildFailed, MissingExtra
from flatout.records.limits import DeviceLimits, Limits, MatmulResult, Measured, MeasuredDevice, RatedPeaks
from flatout.records.rated import Dtype

TIMEOUT_S = 300.0

# (stage, how many are done, how many there are)
OnStage = Callable[[str, int, int], None]


@dataclasses.dataclass(frozen=True)
class _Done:
    measured: Measured
    matmuls: tuple[MatmulResult, ...]
    took_s: float


def torch_version() -> str:
    """The installed torch's version, without importing it."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise MissingExtra("torch", extra="torch", wanted_for="measuring what a device can do") from None


def measure_device(
    target: Target,
    *,
    dtypes: Sequence[Dtype] = (),
    source: DeviceSource | None = None,
    on_stage: OnStage = lambda _stage, _done, _total: None,
    timeout_s: float = TIMEOUT_S,
) -> DeviceLimits:
    """Measure one device in a child process."""
    version = torch_version()
    with ClockWatch(source, target.device) as clocks:
        done = _run_child(target, dtypes, on_stage, timeout_s)
    return DeviceLimits(
        device=_identity(target, version),
        measured=done.measured,
        matmuls=done.matmuls,
        clocks=clocks.state(),
        took_s=done.took_s,
    )


def combine(device: DeviceLimits, cpu: DeviceLimits | None, physical: Device) -> Limits:
    """The document: what was measured beside what the vendor promises."""
    entry = rated_for(physical)
    rated = None
    reason = f"no rated figures for {physical.name!r} in the catalogue"
    if entry is not None:
        reason = ""
        rated = RatedPeaks(
            id=entry.id,
            name=entry.name,
            dense_flops_per_s=dict(entry.dense_flops_per_s),
            memory_bytes_per_s=entry.memory_bandwidth_bytes_per_s,
            host_link_bytes_per_s=entry.host_link_bytes_per_s,
            source=entry.source,
            source_url=entry.source_url,
            note=entry.note,
        )
    return Limits(
        device=device.device,
        measured=device.measured,
        rated=rated,
        rated_reason=reason,
        matmuls=device.matmuls,
        clocks=device.clocks,
        cpu=cpu,
        measured_at=dt.datetime.now(dt.UTC).replace(microsecond=0),
        took_s=device.took_s + (cpu.took_s if cpu else 0.0),
        method=METHOD,
    )


def _identity(target: Target, version: str) -> MeasuredDevice:
    device = target.device
    unknown = {
        name: device.unknown[name] for name in ("uuid", "memory_total_bytes") if name in device.unknown
    }
    return MeasuredDevice(
        name=device.name,
        torch_device=target.torch_device,
        vendor=device.vendor,
        uuid=device.uuid,
        index=device.index,
        memory_total_bytes=device.memory_total_bytes,
        driver_version=device.driver_version,
        torch_version=version,
        unknown=unknown,
    )


def _run_child(target: Target, dtypes: Sequence[Dtype], on_stage: OnStage, timeout_s: float) -> _Done:
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "flatout.limits.worker", str(writer), target.torch_device, *dtypes]
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, **target.environment},
        pass_fds=(writer,),
        start_new_session=True,
    )
    os.close(writer)
    late = threading.Timer(timeout_s, end_process_group, [child.pid])
    late.daemon = True
    late.start()
    complaints = _Drain(child.stderr)
    try:
        with child, os.fdopen(reader, "rb") as lines:
            done = _listen(lines, on_stage)
            child.wait()
    finally:
        late.cancel()
        end_process_group(child.pid)
    if done is None:
        raise _failure(child.returncode, complaints.last_line(), timeout_s, target)
    return done


def _listen(lines: Iterator[bytes], on_stage: OnStage) -> _Done | None:
    """The result, or None when the child fell silent without one."""
    done = None
    for line in lines:
        try:
            event: dict[str, Any] = msgspec.json.decode(line)
        except msgspec.DecodeError:
            return None  # cut off in mid-line: the child died
        if event["event"] == "stage":
            on_stage(event["name"], event["done"], event["total"])
        elif event["event"] == "refused":
            raise ChildFailed(
                event["reason"],
                expected="a torch build that can use this device",
                remedy="flatout doctor   # says what is wrong; --device cpu measures the CPU",
            )
        elif event["event"] == "done":
            done = msgspec.convert(event, _Done)
    return done


def _failure(returncode: int, complaint: str, timeout_s: float, target: Target) -> ChildFailed:
    how = f"died of signal {-returncode}" if returncode < 0 else f"ended with {returncode}"
    said = f": {complaint}" if complaint else ""
    return ChildFailed(
        f"measuring {target.device.name} {how}{said}",
        expected=f"a result within {timeout_s:g} s",
        remedy="flatout doctor   # is the device healthy, and is its memory free?",
    )


class _Drain:
    """Reads a child's standard error to the end, so that a full pipe never blocks the child."""

    def __init__(self, stream: Any) -> None:
        self._text = b""
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream: Any) -> None:
        for chunk in stream:
            self._text = (self._text + chunk)[-4096:]

    def last_line(self) -> str:
        self._thread.join(timeout=1)
        lines = self._text.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""
