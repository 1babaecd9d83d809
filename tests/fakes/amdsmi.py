"""Stands in for the amdsmi module, with answers from a recorded file."""

import enum
import json
import threading
from typing import Any

from tests.fakes.vendor_tools import recorded


class AmdSmiException(Exception):
    pass


class AmdSmiLibraryException(AmdSmiException):
    """Like amdsmi's: the words are in `err_info`, and `str` spreads over two lines."""

    def __init__(self, err_info: str) -> None:
        super().__init__(err_info)
        self.err_info = err_info

    def __str__(self) -> str:
        return f"Error code:\n\t2 | {self.err_info}"


class AmdSmiClkType(enum.Enum):
    GFX = "GFX"
    MEM = "MEM"


class AmdSmiMemoryType(enum.Enum):
    VRAM = "VRAM"


class AmdSmiTemperatureType(enum.Enum):
    EDGE = "EDGE"
    HOTSPOT = "HOTSPOT"
    VRAM = "VRAM"


class AmdSmiTemperatureMetric(enum.Enum):
    CURRENT = "CURRENT"
    CRITICAL = "CRITICAL"
    EMERGENCY = "EMERGENCY"


class FakeAmdSmi:
    """`lost` GPUs fail every call; `missing` functions are as in an older release; `blocked` calls hang."""

    AmdSmiException = AmdSmiException
    AmdSmiLibraryException = AmdSmiLibraryException
    AmdSmiClkType = AmdSmiClkType
    AmdSmiMemoryType = AmdSmiMemoryType
    AmdSmiTemperatureType = AmdSmiTemperatureType
    AmdSmiTemperatureMetric = AmdSmiTemperatureMetric

    def __init__(self, name: str = "amdsmi_mi300x_two.json") -> None:
        found = json.loads(recorded(name))
        self.gpus: list[dict[str, Any]] = found["gpus"]
        self._rocm_version: list[Any] = found["rocm_version"]
        self.lost: set[int] = set()
        self.missing: set[str] = set()
        self.blocked: set[int] = set()
        self.release = threading.Event()
        self.init_error: Exception | None = None
        self.started = 0
        self.stopped = 0

    def amdsmi_init(self) -> None:
        if self.init_error is not None:
            raise self.init_error
        self.started += 1

    def amdsmi_shut_down(self) -> None:
        self.stopped += 1

    def amdsmi_get_processor_handles(self) -> list[int]:
        return list(range(len(self.gpus)))

    def amdsmi_get_rocm_version(self) -> tuple[bool, str]:
        return self._rocm_version[0], self._rocm_version[1]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("amdsmi_get_") or name in self.missing:
            raise AttributeError(f"module 'amdsmi' has no attribute '{name}'")
        return lambda gpu, *arguments: self._answer(gpu, name, arguments)

    def _answer(self, gpu: int, name: str, arguments: tuple[Any, ...]) -> Any:
        if gpu in self.blocked:
            self.release.wait(30)
        if gpu in self.lost:
            raise AmdSmiLibraryException("AMDSMI_STATUS_NOT_FOUND - Device Not found")
        words = [one.value if isinstance(one, enum.Enum) else str(one) for one in arguments]
        answer = self.gpus[gpu].get(":".join([name, *words]))
        if answer is None:
            raise AmdSmiLibraryException("AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported")
        if isinstance(answer, dict) and "raises" in answer:
            raise AmdSmiLibraryException(answer["raises"])
        return answer
