"""One NVML session that outlives forks, driver reloads and calls that never return."""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flatout.hardware.deadline import DeadlinePassed, Worker
from flatout.hardware.protocol import Problem

INIT_TIMEOUT_S = 10.0
BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 60.0

# NVML's return codes, by number: their exception classes are made at import time and cannot be typed.
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
VERSION_MISMATCH = 18

_FIXES: dict[int, tuple[str, str]] = {
    DRIVER_NOT_LOADED: (
        "nvidia.driver_not_loaded",
        "sudo modprobe nvidia   # in a container: start it with --gpus all",
    ),
    NO_PERMISSION: (
        "nvidia.no_permission",
        "ls -l /dev/nvidia*   # this user must read and write them; in a container: start it with --gpus all",
    ),
    VERSION_MISMATCH: (
        "nvidia.version_mismatch",
        "sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia   # or reboot",
    ),
    GPU_IS_LOST: (
        "nvidia.gpu_lost",
        "sudo nvidia-smi --gpu-reset   # if it fails, reboot; Xid 79 in dmesg",
    ),
    RESET_REQUIRED: ("nvidia.reset_required", "sudo nvidia-smi --gpu-reset   # with no process on the GPU"),
}
_UNKNOWN_FIX = (
    "nvidia.unknown_error",
    "restart the container or job   # `systemctl daemon-reload` takes a container's device permission away",
)


class NvmlUnavailable(Exception):
    """NVML cannot be used now. `absent` means there is no NVIDIA driver at all: not a fault."""

    def __init__(self, problem: Problem, *, absent: bool = False) -> None:
        super().__init__(problem.evidence)
        self.problem = problem
        self.absent = absent


class NvmlSession:
    """Initialises NVML when first needed, again after a fork or a loss, and not too often after failures."""

    def __init__(
        self,
        library: Any = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        init_timeout_s: float = INIT_TIMEOUT_S,
    ) -> None:
        self._library = library
        self._monotonic = monotonic
        self._init_timeout_s = init_timeout_s
        self._worker = Worker("flatout-nvml-init")
        self._pid = 0
        self._retry_at = 0.0
        self._backoff_s = 0.0
        self._last: NvmlUnavailable | None = None
        self.generation = 0

    @property
    def library(self) -> Any:
        """The pynvml module, or what a test put in its place."""
        if self._library is None:
            import pynvml

            self._library = pynvml
        return self._library

    @property
    def error(self) -> type[Exception]:
        """The exception that every NVML call raises."""
        kind: type[Exception] = self.library.NVMLError
        return kind

    def ensure(self) -> None:
        """Have a working session, or raise NvmlUnavailable."""
        if self._pid == os.getpid():
            return
        if self._last is not None and self._monotonic() < self._retry_at:
            raise self._last
        try:
            self._worker.call(self.library.nvmlInit, self._init_timeout_s)
        except (self.error, DeadlinePassed, OSError, AttributeError) as error:
            self._last = self._explain(error)
            self._backoff_s = min(BACKOFF_MAX_S, max(BACKOFF_FIRST_S, 2 * self._backoff_s))
            self._retry_at = self._monotonic() + self._backoff_s
            raise self._last from error
        self._pid = os.getpid()
        self._last = None
        self.generation += 1

    def confirm(self) -> None:
        """The session has answered well: the next trouble starts with a short pause again."""
        self._backoff_s = 0.0

    def lose(self, error: Exception) -> None:
        """The session answered with an error that only a new one can mend: start over, after a pause."""
        if self._pid != os.getpid():
            return
        self.close()  # NVML counts its users: without this, the next start would return the broken session
        self._backoff_s = min(BACKOFF_MAX_S, max(BACKOFF_FIRST_S, 2 * self._backoff_s))
        self._retry_at = self._monotonic() + self._backoff_s
        self._last = self._explain(error)

    def close(self) -> None:
        """End the session. A forked child leaves its parent's alone."""
        if self._pid != os.getpid():
            return
        self._pid = 0
        try:
            self._worker.call(self.library.nvmlShutdown, self._init_timeout_s)
        except (self.error, DeadlinePassed):
            return  # it is over either way

    def _explain(self, error: Exception) -> NvmlUnavailable:
        code = error_code(error)
        if code == LIBRARY_NOT_FOUND:
            evidence = "NVIDIA's management library (libnvidia-ml) is not on this machine"
            return NvmlUnavailable(Problem(code="nvidia.no_library", evidence=evidence, fix=""), absent=True)
        if isinstance(error, DeadlinePassed):
            error = DeadlinePassed(f"no answer within {self._init_timeout_s:g} s")
            fix = "nvidia-smi   # if it hangs too, the driver is wedged: look at dmesg, then reboot"
            return NvmlUnavailable(Problem(code="nvidia.blocked", evidence=f"NVML: {error}", fix=fix))
        name, fix = _FIXES.get(code, _UNKNOWN_FIX)
        evidence = f"NVML answers: {error}"
        if code == VERSION_MISMATCH:
            evidence += f" (kernel module {_kernel_module_version() or 'of another version'})"
        return NvmlUnavailable(Problem(code=name, evidence=evidence, fix=fix))


def error_code(error: Exception) -> int:
    """The NVML return code of an exception; -1 for what did not come from NVML."""
    return int(getattr(error, "value", -1))


def _kernel_module_version(path: Path = Path("/proc/driver/nvidia/version")) -> str:
    try:
        found = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", path.read_text(errors="replace"))
    except OSError:
        return ""
    return found[1] if found else ""
