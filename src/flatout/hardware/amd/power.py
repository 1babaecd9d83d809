"""How much an AMD GPU may draw, through amdsmi, which counts power caps in microwatts."""

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from flatout.hardware.amd.answers import describe, errors_of, load_amdsmi
from flatout.hardware.deadline import DeadlinePassed, Worker
from flatout.hardware.power_limits import PowerLimits, PowerRefused
from flatout.records.device import Vendor

T = TypeVar("T")

CALL_TIMEOUT_S = 5.0
# The socket's own sensor; others are there on few cards.
_SENSOR = 0


class AmdPowerControl:
    """amdsmi's power cap of a GPU. Setting it takes root, and does not work in a virtual machine."""

    vendor: Vendor = "amd"

    def __init__(
        self,
        library: Any = None,
        *,
        load: Callable[[], Any] = load_amdsmi,
        call_timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        self._load = load if library is None else lambda: library
        self._library: Any = None
        self._handles: dict[str, Any] = {}
        self._call_timeout_s = call_timeout_s
        self._worker = Worker("flatout-amd-power")

    def limits(self, uuid: str) -> PowerLimits:
        """What holds now, and what can be set."""
        handle = self._handle(uuid)
        found = self._asked(lambda: self._library.amdsmi_get_power_cap_info(handle))
        try:
            return PowerLimits(
                limit_mw=int(found["power_cap"]) // 1000,
                min_mw=int(found["min_power_cap"]) // 1000,
                max_mw=int(found["max_power_cap"]) // 1000,
                default_mw=int(found["default_power_cap"]) // 1000,
            )
        except (LookupError, TypeError, ValueError) as error:
            raise PowerRefused("not supported", describe(error)) from error

    def set_limit(self, uuid: str, limit_mw: int) -> None:
        """Set it, within what the GPU takes."""
        known = self.limits(uuid)
        if known.within(limit_mw) != limit_mw:
            raise PowerRefused("out of range", f"the GPU takes {known.min_mw} to {known.max_mw} mW")
        handle = self._handle(uuid)
        self._asked(lambda: self._library.amdsmi_set_power_cap(handle, _SENSOR, limit_mw * 1000))

    def command_for(self, uuid: str, limit_mw: int) -> str:
        """amd-smi takes whole watts."""
        return f"sudo amd-smi set --gpu {uuid} --power-cap {round(limit_mw / 1000)}"

    def close(self) -> None:
        """Stop the library, if it was started."""
        library, self._library, self._handles = self._library, None, {}
        if library is not None:
            with contextlib.suppress(DeadlinePassed, *errors_of(library)):
                self._worker.call(library.amdsmi_shut_down, self._call_timeout_s)

    def _handle(self, uuid: str) -> Any:
        if self._library is None:
            self._open()
        if uuid not in self._handles:
            raise PowerRefused("lost", f"amdsmi lists no GPU {uuid}")
        return self._handles[uuid]

    def _open(self) -> None:
        try:
            self._library = self._load()
        except ImportError as error:
            raise PowerRefused("not supported", str(error)) from error

        def handles() -> dict[str, Any]:
            self._library.amdsmi_init()
            listed = self._library.amdsmi_get_processor_handles()
            return {str(self._library.amdsmi_get_gpu_device_uuid(handle)): handle for handle in listed}

        try:
            self._handles = self._asked(handles)
        except PowerRefused:
            self.close()  # the next question begins anew
            raise

    def _asked(self, call: Callable[[], T]) -> T:
        try:
            return self._worker.call(call, self._call_timeout_s)
        except DeadlinePassed as error:
            raise PowerRefused("lost", f"the driver does not answer: {error}") from error
        except errors_of(self._library) as error:
            said = describe(error)
            denied = isinstance(error, PermissionError) or "permission" in said.lower() or "NO_PERM" in said
            raise PowerRefused("permission" if denied else "other", said) from error
