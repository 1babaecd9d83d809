"""A fake NVML whose power limits can be set, kept in a file: several processes see the same devices.

A device draws what its job wants, up to its limit; under a limit the job becomes slower, though by less than
it saves. Faults are planted in the file, so that a test reaches into processes that it has started.
"""

import contextlib
import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml

from tests.fakes.nvml import FakeNvml, Handle

FILE_VARIABLE = "FAKE_NVML_FILE"
INSUFFICIENT_RANGE = 2
DRAM_METRIC = 10
_SET = "nvmlDeviceSetPowerManagementLimit"


class NvmlWithLimits(FakeNvml):
    def __init__(self, file: Path, gpus: int = 1, *, wanted_w: float = 650.0) -> None:
        super().__init__(gpus)
        self._file = file
        if not file.exists():
            low, high = self.recorded["nvmlDeviceGetPowerManagementLimitConstraints"]["ok"]
            devices = [
                {"limit_mw": high, "min_mw": low, "max_mw": high, "joules": 0.0, "since": time.time()}
                for _ in range(gpus)
            ]
            whole = {"gpus": devices, "faults": {}, "sets": [], "holders": [], "wanted_w": wanted_w}
            file.write_text(json.dumps(whole))

    @classmethod
    def from_environment(cls) -> "NvmlWithLimits":
        file = Path(os.environ[FILE_VARIABLE])
        return cls(file, gpus=len(json.loads(file.read_text())["gpus"]))

    # --- what a test reads and plants -----------------------------------------------------------------

    @contextlib.contextmanager
    def state(self) -> Iterator[dict[str, Any]]:
        """All of it, to read and change, while no other process does; whoever is killed meanwhile."""
        with self._file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = self._file.read_text()
            whole = json.loads(before)
            yield whole
            after = json.dumps(whole)
            if after != before:
                fresh = self._file.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
                fresh.write_text(after)
                fresh.replace(self._file)

    def limit_mw(self, gpu: int = 0) -> int:
        with self.state() as whole:
            return int(whole["gpus"][gpu]["limit_mw"])

    def sets(self) -> list[tuple[int, int]]:
        """Every limit that was set, by whomever: the GPU and the limit."""
        with self.state() as whole:
            return [(gpu, limit_mw) for gpu, limit_mw, _pid in whole["sets"]]

    def set_by_others(self, limit_mw: int, gpu: int = 0) -> None:
        with self.state() as whole:
            _charge(whole, gpu)
            whole["gpus"][gpu]["limit_mw"] = limit_mw

    def plant(self, name: str, code: int, gpu: int | None = None, *, after_sets: int = 0) -> None:
        """From now on, or after so many limits were set, this call fails (`*`: every call for the GPU)."""
        with self.state() as whole:
            key = name if gpu is None else f"{name}@{gpu}"
            whole["faults"][key] = [code, after_sets]

    def heal_file(self) -> None:
        with self.state() as whole:
            whole["faults"] = {}

    def keep_in(self, step_mw: int) -> None:
        """From now on limits are kept in steps of this, rounded down."""
        with self.state() as whole:
            whole["kept_in_mw"] = step_mw

    def hold_by(self, *pids: int) -> None:
        with self.state() as whole:
            whole["holders"] = list(pids)

    # --- NVML -----------------------------------------------------------------------------------------

    def _call(self, name: str, *arguments: Any) -> Any:
        gpu = arguments[0].gpu if arguments and isinstance(arguments[0], Handle) else None
        if gpu is None and name == "nvmlDeviceGetHandleByUUID":
            gpu = next((one for one in range(self.gpus) if self.uuid(one) == arguments[0]), None)
        with self.state() as whole:
            for key in (name, f"{name}@{gpu}", f"*@{gpu}"):
                code, after = whole["faults"].get(key, (0, 0))
                if code and len(whole["sets"]) >= after:
                    self.fired[f"{key} {code}"] += 1
                    raise pynvml.NVMLError(code)
            own = _LIMITS.get(name)
            if own is not None:
                return own(self, whole, *arguments)
        return super()._call(name, *arguments)

    def _set_limit(self, whole: dict[str, Any], handle: Handle, limit_mw: int) -> None:
        one = whole["gpus"][handle.gpu]
        if not one["min_mw"] <= limit_mw <= one["max_mw"]:
            raise pynvml.NVMLError(INSUFFICIENT_RANGE)
        _charge(whole, handle.gpu)
        one["limit_mw"] = limit_mw - limit_mw % whole.get("kept_in_mw", 1)
        whole["sets"].append([handle.gpu, limit_mw, os.getpid()])

    def _energy(self, whole: dict[str, Any], handle: Handle) -> int:
        _charge(whole, handle.gpu)
        return round(whole["gpus"][handle.gpu]["joules"] * 1000)

    def _activity(self, whole: dict[str, Any], request: Any) -> None:
        self._gpm_metrics(request)
        for metric in request.metrics[: request.numMetrics]:
            if metric.metricId == DRAM_METRIC:
                metric.value = 50.0 * pace(whole, 0)

    def pace(self, gpu: int = 0) -> float:
        """Of the full pace, what a job has under the limit as it is."""
        with self.state() as whole:
            return pace(whole, gpu)


def _draw_w(whole: dict[str, Any], gpu: int) -> float:
    return float(min(whole["gpus"][gpu]["limit_mw"] / 1000, whole["wanted_w"]))


def pace(whole: dict[str, Any], gpu: int) -> float:
    """Of the full pace: down to 3/4 of what it wants the job hardly notices, below that it does."""
    share = _draw_w(whole, gpu) / whole["wanted_w"]
    return 1.0 - 0.04 * (1 - share) if share >= 0.75 else 0.99 * share / 0.75


def _charge(whole: dict[str, Any], gpu: int) -> None:
    one, now = whole["gpus"][gpu], time.time()
    one["joules"] += _draw_w(whole, gpu) * (now - one["since"])
    one["since"] = now


def _holders(whole: dict[str, Any]) -> list[Any]:
    from types import SimpleNamespace

    return [SimpleNamespace(pid=pid, usedGpuMemory=1 << 30) for pid in whole["holders"]]


_LIMITS: dict[str, Callable[..., Any]] = {
    _SET: NvmlWithLimits._set_limit,
    "nvmlDeviceGetPowerManagementLimit": lambda _f, whole, handle: whole["gpus"][handle.gpu]["limit_mw"],
    "nvmlDeviceGetEnforcedPowerLimit": lambda _f, whole, handle: whole["gpus"][handle.gpu]["limit_mw"],
    "nvmlDeviceGetPowerManagementLimitConstraints": lambda _f, whole, handle: [
        whole["gpus"][handle.gpu]["min_mw"],
        whole["gpus"][handle.gpu]["max_mw"],
    ],
    "nvmlDeviceGetPowerUsage": lambda _f, whole, handle: round(1000 * _draw_w(whole, handle.gpu)),
    "nvmlGpmMetricsGet": NvmlWithLimits._activity,
    "nvmlDeviceGetTotalEnergyConsumption": NvmlWithLimits._energy,
    "nvmlDeviceGetComputeRunningProcesses_v3": lambda _f, whole, _handle: _holders(whole),
}
