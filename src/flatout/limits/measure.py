"""Runs the measuring child, listens to it, and watches the clocks meanwhile."""

import contextlib
import dataclasses
import importlib.metadata
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import msgspec

from flatout.hardware.command import end_child, end_process_group, start_worker
from flatout.hardware.protocol import DeviceSource
from flatout.limits.clocks import ClockWatch
from flatout.limits.target import Target
from flatout.limits.worker import DeviceOrder
from flatout.records.errors import ChildFailed, MissingExtra
from flatout.records.limits import DeviceLimits, MatmulResult, Measured, MeasuredDevice
from flatout.records.rated import Dtype

TIMEOUT_S = 300.0
# A child that has said its last word; writing a core down takes seconds, a wedged driver for ever.
_ENDS_WITHIN_S = 15.0

# (stage, how many are done, how many there are)
OnStage = Callable[[str, int, int], None]


@dataclasses.dataclass(frozen=True)
class Job:
    """One device to measure, how, and who can tell its clocks meanwhile."""

    target: Target
    dtypes: tuple[Dtype, ...]
    source: DeviceSource | None = None


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


def measure_devices(
    jobs: Sequence[Job],
    *,
    on_stage: OnStage = lambda _stage, _done, _total: None,
    timeout_s: float = TIMEOUT_S,
) -> list[DeviceLimits]:
    """Measure the devices of `jobs` one after the other, in one child process."""
    version = torch_version()
    found: list[DeviceLimits] = []
    with _child(jobs, timeout_s) as child:
        for job in jobs:
            label = "CPU: " if job.target.device.vendor == "cpu" and len(jobs) > 1 else ""
            with ClockWatch(job.source, job.target.device) as clocks:
                done = child.listen(on_stage, label)
            if done is None:
                raise child.failure(job.target, timeout_s)
            found.append(
                DeviceLimits(
                    device=_identity(job.target, version),
                    measured=done.measured,
                    matmuls=done.matmuls,
                    clocks=clocks.state(),
                    took_s=done.took_s,
                )
            )
    return found


def _identity(target: Target, version: str) -> MeasuredDevice:
    device = target.device
    fields = MeasuredDevice.__dataclass_fields__
    return MeasuredDevice(
        name=device.name,
        torch_device=target.torch_device,
        vendor=device.vendor,
        uuid=device.uuid,
        index=device.index,
        memory_total_bytes=device.memory_total_bytes,
        driver_version=device.driver_version,
        torch_version=version,
        unknown={name: reason for name, reason in device.unknown.items() if name in fields},
    )


class _Child:
    """The measuring process, seen from here: a stream of events and the end of its standard error."""

    def __init__(self, process: subprocess.Popen[bytes], events: IO[bytes]) -> None:
        self._process = process
        self._events = events
        self._complaints = b""
        self.late = False
        # Read to the end, so that a full pipe never blocks the child.
        self._reader = threading.Thread(target=self._drain, daemon=True)
        self._reader.start()

    def _drain(self) -> None:
        for chunk in self._process.stderr or ():
            self._complaints = (self._complaints + chunk)[-4096:]

    def listen(self, on_stage: OnStage, label: str) -> _Done | None:
        """Follow one device to its result; None when the child fell silent without one."""
        for line in self._events:
            try:
                event: dict[str, Any] = msgspec.json.decode(line)
            except msgspec.DecodeError:
                return None  # cut off in mid-line: the child died
            if event["event"] == "stage":
                on_stage(label + event["name"], event["done"], event["total"])
            elif event["event"] == "refused":
                raise ChildFailed(
                    event["reason"],
                    expected="a torch build that can use this device",
                    remedy="flatout doctor   # says what is wrong; --device cpu measures the CPU",
                )
            else:
                return msgspec.convert(event, _Done)
        return None

    def failure(self, target: Target, timeout_s: float) -> ChildFailed:
        """Why there is no result."""
        if self.late:
            return ChildFailed(
                f"measuring {target.device.name} gave no result within {timeout_s:g} s",
                expected="a result in well under a minute",
                remedy="flatout doctor   # does the device answer, and is it busy?",
            )
        try:
            code = self._process.wait(_ENDS_WITHIN_S)
            how = f"died of signal {-code}" if code < 0 else f"ended with {code}"
        except subprocess.TimeoutExpired:
            how = "fell silent, and its process does not end"
        self._reader.join(timeout=1)
        lines = self._complaints.decode(errors="replace").strip().splitlines()
        return ChildFailed(
            f"measuring {target.device.name} {how}" + (f": {lines[-1]}" if lines else ""),
            expected="a result",
            remedy="flatout doctor   # is the device healthy, and is its memory free?",
        )


@contextlib.contextmanager
def _child(jobs: Sequence[Job], timeout_s: float) -> Iterator[_Child]:
    """Start the child; whatever happens, it and everything it started are gone afterwards."""
    orders = [DeviceOrder(device=job.target.torch_device, dtypes=job.dtypes) for job in jobs]
    environment = {name: value for job in jobs for name, value in job.target.environment.items()}
    order = msgspec.json.encode(orders).decode()
    process, events = start_worker("flatout.limits.worker", order, environment)
    child = _Child(process, events)

    def give_up() -> None:
        child.late = True
        end_process_group(process.pid)

    late = threading.Timer(timeout_s, give_up)
    late.daemon = True
    late.start()
    try:
        with events:
            yield child
    finally:
        late.cancel()
        end_child(process)
