"""How much an NVIDIA GPU may draw, through NVML. Setting it takes root, or the right in a container."""

from collections.abc import Callable
from typing import Any, TypeVar

from flatout.hardware.deadline import DeadlinePassed, Worker
from flatout.hardware.nvidia.reading import describe_error
from flatout.hardware.nvidia.session import (
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    NvmlSession,
    NvmlUnavailable,
    error_code,
)
from flatout.hardware.power_limits import PowerLimits, PowerRefused, RefusalKind
from flatout.records.device import Vendor

T = TypeVar("T")

CALL_TIMEOUT_S = 5.0
_KINDS: dict[int, RefusalKind] = {
    NO_PERMISSION: "permission",
    NOT_SUPPORTED: "not supported",
    FUNCTION_NOT_FOUND: "not supported",
    INVALID_ARGUMENT: "out of range",
    GPU_IS_LOST: "lost",
    RESET_REQUIRED: "lost",
    NOT_FOUND: "lost",
}
_WORDS: dict[int, str] = {
    NO_PERMISSION: "this user may not set it",
    INVALID_ARGUMENT: "the driver does not take this limit",
}


class NvidiaPowerControl:
    """NVML's power management limits. Calls run in a thread: a wedged driver must not hang us."""

    vendor: Vendor = "nvidia"

    def __init__(
        self,
        library: Any = None,
        *,
        session: NvmlSession | None = None,
        call_timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        self._session = session or NvmlSession(library)
        self._call_timeout_s = call_timeout_s
        self._worker = Worker("flatout-nvml-power")

    def limits(self, uuid: str) -> PowerLimits:
        """What holds now, and what can be set."""
        library = self._ready()

        def read() -> PowerLimits:
            handle = library.nvmlDeviceGetHandleByUUID(uuid)
            lowest, highest = library.nvmlDeviceGetPowerManagementLimitConstraints(handle)
            return PowerLimits(
                limit_mw=int(library.nvmlDeviceGetPowerManagementLimit(handle)),
                min_mw=int(lowest),
                max_mw=int(highest),
                default_mw=int(library.nvmlDeviceGetPowerManagementDefaultLimit(handle)),
            )

        return self._asked(read)

    def set_limit(self, uuid: str, limit_mw: int) -> None:
        """Set it, and see that it was taken."""
        known = self.limits(uuid)
        if known.within(limit_mw) != limit_mw:
            raise PowerRefused(
                "out of range",
                f"{limit_mw / 1000:g} W is not between the {known.min_mw / 1000:g} W and "
                f"{known.max_mw / 1000:g} W that the GPU takes",
            )
        library = self._session.library

        def write() -> None:
            handle = library.nvmlDeviceGetHandleByUUID(uuid)
            library.nvmlDeviceSetPowerManagementLimit(handle, limit_mw)

        self._asked(write)

    def command_for(self, uuid: str, limit_mw: int) -> str:
        """nvidia-smi takes watts, and fractions of them."""
        return f"sudo nvidia-smi -i {uuid} -pl {limit_mw / 1000:g}"

    def close(self) -> None:
        """End the session."""
        self._session.close()

    def _ready(self) -> Any:
        try:
            self._session.ensure()
        except NvmlUnavailable as error:
            raise PowerRefused("lost", str(error)) from error
        return self._session.library

    def _asked(self, call: Callable[[], T]) -> T:
        try:
            return self._worker.call(call, self._call_timeout_s)
        except DeadlinePassed as error:
            raise PowerRefused("lost", f"the driver does not answer: {error}") from error
        except AttributeError as error:
            raise PowerRefused("not supported", describe_error(error)) from error
        except self._session.error as error:
            code = error_code(error)
            raise PowerRefused(_KINDS.get(code, "other"), _WORDS.get(code, describe_error(error))) from error
