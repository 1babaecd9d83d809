"""Stands where the pynvml module stands: answers recorded on a real H200, and faults planted on demand.

Every planted fault that fires is counted in `fired`, so that a test can show that it really happened.
"""

import dataclasses
import itertools
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

RECORDING = Path(__file__).parent.parent / "recorded" / "nvml_h200.json"

NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
VERSION_MISMATCH = 18
UNKNOWN = 999


@dataclasses.dataclass(frozen=True)
class Handle:
    """What NVML hands out for a GPU, or for a MIG instance of it."""

    gpu: int
    instance: int | None = None


class FakeNvml:
    """A machine with `gpus` H200s. Functions are looked up by name, as in pynvml."""

    NVMLError = pynvml.NVMLError
    nvmlEventTypeXidCriticalError = pynvml.nvmlEventTypeXidCriticalError
    nvmlMemory_v2 = pynvml.nvmlMemory_v2
    NVML_FI_DEV_MEMORY_TEMP = pynvml.NVML_FI_DEV_MEMORY_TEMP
    NVML_GPM_METRICS_GET_VERSION = pynvml.NVML_GPM_METRICS_GET_VERSION

    def __init__(self, gpus: int = 1) -> None:
        self.gpus = gpus
        self.recorded = json.loads(RECORDING.read_text())["answers"]
        self.calls: Counter[str] = Counter()
        self.fired: Counter[str] = Counter()
        self.init_pids: list[int] = []
        self.mig: dict[int, int] = {}
        self.xids: list[tuple[int, int]] = []
        # By GPU: pid, percent of time with a kernel, and how many seconds ago that was.
        self.active: dict[int, list[tuple[int, int, float]]] = {}
        self.removed: set[str] = set()
        self._errors: dict[tuple[str, int | None], int] = {}
        self._answers: dict[tuple[str, int | None], Any] = {}
        self._blocks: dict[tuple[str, int | None], threading.Event] = {}
        self._samples = itertools.count()
        self.live_samples = 0

    # --- planting -------------------------------------------------------------------------------------

    def fail(self, name: str, code: int, gpu: int | None = None) -> None:
        self._errors[name, gpu] = code

    def heal(self, name: str, gpu: int | None = None) -> None:
        self._errors.pop((name, gpu), None)

    def answer(self, name: str, value: Any, gpu: int | None = None) -> None:
        self._answers[name, gpu] = value

    def block(self, name: str, gpu: int | None = None) -> threading.Event:
        """The call does not return before the event is set."""
        return self._blocks.setdefault((name, gpu), threading.Event())

    def lose(self, gpu: int, code: int = GPU_IS_LOST) -> None:
        self.fail("*", code, gpu)

    def lose_all(self, code: int) -> None:
        for gpu in range(self.gpus):
            self.fail("*", code, gpu)

    def heal_all(self) -> None:
        self._errors.clear()

    def uuid(self, gpu: int = 0, instance: int | None = None) -> str:
        own = self.recorded["nvmlDeviceGetUUID"]["ok"][:-1] + str(gpu)
        return own if instance is None else f"MIG-{gpu}{instance}f7d6c5b-0000-4a7e-9f10-2b8c7d6e5f4{instance}"

    # --- NVML -----------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvml") or name in self.removed:
            raise AttributeError(name)
        return lambda *arguments: self._call(name, *arguments)

    def _call(self, name: str, *arguments: Any) -> Any:
        self.calls[name] += 1
        gpu = arguments[0].gpu if arguments and isinstance(arguments[0], Handle) else None
        for key in {(name, gpu), (name, None)}:
            if key in self._blocks:
                self.fired[f"block {name}"] += 1
                self._blocks[key].wait(60)
        for key in ((name, gpu), (name, None), *([("*", gpu)] if gpu is not None else [])):
            if key in self._errors:
                self._raise(name, self._errors[key])
        for key in ((name, gpu), (name, None)):
            if key in self._answers:
                return self._answers[key]
        own = _OWN.get(name)
        if own is not None:
            return own(self, *arguments)
        return self._from_recording(name, arguments[1:])

    def _raise(self, name: str, code: int) -> None:
        self.fired[f"{name} {code}"] += 1
        raise pynvml.NVMLError(code)

    def _from_recording(self, name: str, arguments: tuple[Any, ...]) -> Any:
        key = f"{name}({','.join(map(str, arguments))})" if arguments else name
        found = self.recorded.get(key)
        if found is None:
            raise pynvml.NVMLError(FUNCTION_NOT_FOUND)
        if "error" in found:
            raise pynvml.NVMLError(found["error"])
        value = found["ok"]
        return SimpleNamespace(**value) if isinstance(value, dict) else value

    def _init(self) -> None:
        self.init_pids.append(os.getpid())

    def _by_index(self, index: int) -> Handle:
        for key in (("*", index), ("nvmlDeviceGetHandleByIndex", index)):
            if key in self._errors:
                self._raise("nvmlDeviceGetHandleByIndex", self._errors[key])
        return Handle(index)

    def _by_uuid(self, uuid: str) -> Handle:
        for gpu in range(self.gpus):
            if uuid == self.uuid(gpu):
                return self._by_index(gpu)
            for instance in range(self.mig.get(gpu, 0)):
                if uuid == self.uuid(gpu, instance):
                    return Handle(gpu, instance)
        raise pynvml.NVMLError(NOT_FOUND)

    def _memory(self, handle: Handle, version: object = None) -> Any:
        if handle.instance is not None:
            return SimpleNamespace(total=17 << 30, free=16 << 30, used=1 << 30)
        return self._from_recording("nvmlDeviceGetMemoryInfo", ("v2",) if version is not None else ())

    def _mig_handle(self, handle: Handle, slot: int) -> Handle:
        if slot >= self.mig.get(handle.gpu, 0):
            raise pynvml.NVMLError(NOT_FOUND)
        return Handle(handle.gpu, slot)

    def _name(self, handle: Handle) -> str:
        suffix = "" if handle.instance is None else " MIG 1g.18gb"
        return self._from_recording("nvmlDeviceGetName", ()) + suffix

    def _wait_for_event(self, _event_set: Any, _timeout_ms: int) -> Any:
        if not self.xids:
            raise pynvml.NVMLError(TIMEOUT)
        gpu, xid = self.xids.pop(0)
        return SimpleNamespace(device=Handle(gpu), eventData=xid)

    def _process_utilization(self, handle: Handle, since_us: int) -> list[Any]:
        now_us = time.time() * 1e6
        found = [
            SimpleNamespace(pid=pid, timeStamp=int(now_us - ago_s * 1e6), smUtil=percent, memUtil=0)
            for pid, percent, ago_s in self.active.get(handle.gpu, [])
        ]
        recent = [sample for sample in found if sample.timeStamp >= since_us]
        if not recent:
            raise pynvml.NVMLError(NOT_FOUND)
        return recent

    def hold(self, *processes: tuple[int, int | None], gpu: int = 0) -> None:
        """These processes (pid, bytes) hold memory of this GPU, for computing."""
        entries = [SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, held in processes]
        self.answer("nvmlDeviceGetComputeRunningProcesses_v3", entries, gpu)

    def _field_values(self, _handle: Handle, _ids: list[int]) -> list[Any]:
        celsius = self.recorded["field NVML_FI_DEV_MEMORY_TEMP"]["ok"]
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=celsius))]

    def _gpm_alloc(self) -> int:
        self.live_samples += 1
        return next(self._samples)

    def _gpm_free(self, _sample: int) -> None:
        self.live_samples -= 1

    def c_nvmlGpmMetricsGet_t(self) -> Any:
        metrics = [SimpleNamespace(metricId=0, value=0.0, nvmlReturn=0) for _ in range(16)]
        return SimpleNamespace(version=0, numMetrics=0, sample1=None, sample2=None, metrics=metrics)

    def _gpm_metrics(self, request: Any) -> None:
        assert request.sample1 is not None
        assert request.sample2 != request.sample1
        for metric in request.metrics[: request.numMetrics]:
            metric.value = self.recorded["gpm busy"]["ok"][str(metric.metricId)]


_OWN: dict[str, Callable[..., Any]] = {
    "nvmlInit": FakeNvml._init,
    "nvmlShutdown": lambda _fake: None,
    "nvmlDeviceGetCount": lambda fake: fake.gpus,
    "nvmlDeviceGetHandleByIndex": FakeNvml._by_index,
    "nvmlDeviceGetHandleByUUID": FakeNvml._by_uuid,
    "nvmlDeviceGetUUID": lambda fake, handle: fake.uuid(handle.gpu, handle.instance),
    "nvmlDeviceGetName": FakeNvml._name,
    "nvmlDeviceGetMemoryInfo": FakeNvml._memory,
    "nvmlDeviceGetMigMode": lambda fake, handle: [int(handle.gpu in fake.mig)] * 2,
    "nvmlDeviceGetMaxMigDeviceCount": lambda _fake, _handle: 7,
    "nvmlDeviceGetMigDeviceHandleByIndex": FakeNvml._mig_handle,
    "nvmlEventSetCreate": lambda _fake: object(),
    "nvmlEventSetFree": lambda _fake, _set: None,
    "nvmlDeviceRegisterEvents": lambda _fake, _handle, _kind, _set: None,
    "nvmlEventSetWait_v2": FakeNvml._wait_for_event,
    "nvmlDeviceGetFieldValues": FakeNvml._field_values,
    "nvmlDeviceGetProcessUtilization": FakeNvml._process_utilization,
    "nvmlGpmQueryDeviceSupport": lambda _fake, _handle: SimpleNamespace(isSupportedDevice=1),
    "nvmlGpmSampleAlloc": FakeNvml._gpm_alloc,
    "nvmlGpmSampleFree": FakeNvml._gpm_free,
    "nvmlGpmSampleGet": lambda _fake, _handle, _sample: None,
    "nvmlGpmMetricsGet": FakeNvml._gpm_metrics,
}
