"""What an NVIDIA GPU is: one `Device` record from an NVML handle, and one for each MIG instance of it."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from flatout.hardware.nvidia.reading import is_plausible_heat, nvml_readings, text
from flatout.hardware.nvidia.session import NOT_SUPPORTED, error_code
from flatout.records.device import Device

_ARCHITECTURES = {
    2: "kepler",
    3: "maxwell",
    4: "pascal",
    5: "volta",
    6: "turing",
    7: "ampere",
    8: "ada",
    9: "hopper",
    10: "blackwell",
}
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_THRESHOLD_SHUTDOWN, _THRESHOLD_SLOWDOWN = 0, 1
_OF_THE_PARENT = "a MIG instance shares this with its parent GPU"
_SHARED_WITH_PARENT = (
    "pcie_generation_max",
    "pcie_width_max",
    "clock_compute_max_hz",
    "clock_memory_max_hz",
    "power_limit_default_mw",
    "power_limit_min_mw",
    "power_limit_max_mw",
    "temperature_slowdown_c",
    "temperature_shutdown_c",
)
_MHZ = 1_000_000


def read_device(library: Any, handle: Any, index: int) -> Device:
    """The identity of one physical GPU."""
    fields = nvml_readings(library)
    fields.read("uuid", lambda: text(library.nvmlDeviceGetUUID(handle)))
    _read_memory_total(library, handle, fields)
    fields.read("architecture", lambda: _architecture(library.nvmlDeviceGetArchitecture(handle)))
    fields.read(
        "compute_capability", lambda: "{}.{}".format(*library.nvmlDeviceGetCudaComputeCapability(handle))
    )
    _read_driver(library, fields)
    fields.read("core_count", lambda: int(library.nvmlDeviceGetNumGpuCores(handle)))
    fields.read("pci_bus_id", lambda: text(library.nvmlDeviceGetPciInfo(handle).busId).lower())
    fields.read("pcie_generation_max", lambda: int(library.nvmlDeviceGetMaxPcieLinkGeneration(handle)))
    fields.read("pcie_width_max", lambda: int(library.nvmlDeviceGetMaxPcieLinkWidth(handle)))
    for field, domain in (("clock_compute_max_hz", _CLOCK_SM), ("clock_memory_max_hz", _CLOCK_MEMORY)):
        fields.read(field, partial(_max_clock_mhz, library, handle, domain), scale=_MHZ)
    fields.read(
        "power_limit_default_mw", lambda: int(library.nvmlDeviceGetPowerManagementDefaultLimit(handle))
    )
    _read_power_range(library, handle, fields)
    for field, threshold in (
        ("temperature_slowdown_c", _THRESHOLD_SLOWDOWN),
        ("temperature_shutdown_c", _THRESHOLD_SHUTDOWN),
    ):
        fields.read(field, partial(_threshold, library, handle, threshold), valid=is_plausible_heat)
    fields.read("mig_enabled", lambda: _mig_enabled(library, handle))
    name = (
        fields.read("name", lambda: text(library.nvmlDeviceGetName(handle))) or "NVIDIA GPU of unknown name"
    )
    fields.give("name", name)
    return Device(index=index, vendor="nvidia", unknown=fields.unknown, **fields.values)


def mig_handles(library: Any, handle: Any) -> Iterator[tuple[int, Any]]:
    """(slot, handle) of each MIG instance of a GPU."""
    try:
        slots = library.nvmlDeviceGetMaxMigDeviceCount(handle)
    except library.NVMLError:
        return
    for slot in range(slots):
        try:
            yield slot, library.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
        except library.NVMLError:
            continue  # an empty slot


def read_mig_instance(library: Any, handle: Any, parent: Device, slot: int) -> Device:
    """One MIG instance: its own UUID, name and memory; the rest is its parent's, the index too."""
    fields = nvml_readings(library)
    fields.read("uuid", lambda: text(library.nvmlDeviceGetUUID(handle)))
    _read_memory_total(library, handle, fields)
    fields.read("core_count", lambda: int(library.nvmlDeviceGetNumGpuCores(handle)))
    name = fields.read("name", lambda: text(library.nvmlDeviceGetName(handle))) or f"{parent.name} MIG"
    fields.give("name", name)
    for field in _SHARED_WITH_PARENT:
        fields.absent(field, _OF_THE_PARENT)
    return Device(
        index=parent.index,
        mig_slot=str(slot),
        vendor="nvidia",
        architecture=parent.architecture,
        compute_capability=parent.compute_capability,
        driver_version=parent.driver_version,
        runtime_version=parent.runtime_version,
        pci_bus_id=parent.pci_bus_id,
        mig_enabled=True,
        parent_uuid=parent.uuid or "",
        unknown=fields.unknown,
        **fields.values,
    )


def lost_device(index: int, reason: str) -> Device:
    """A GPU that is counted but does not answer, so that it is shown and not forgotten."""
    missing = {"uuid": reason, "memory_total_bytes": reason}
    return Device(index=index, vendor="nvidia", name="NVIDIA GPU that does not answer", unknown=missing)


def _read_memory_total(library: Any, handle: Any, fields: Any) -> None:
    try:
        total = int(library.nvmlDeviceGetMemoryInfo(handle).total)
    except library.NVMLError as error:
        if error_code(error) == NOT_SUPPORTED:
            fields.absent(
                "memory_total_bytes", "the GPU shares the machine's memory: NVML has no figure for it"
            )
            fields.give("unified_memory", True)
            return
        fields.absent("memory_total_bytes", f"NVML answered: {error}")
        return
    fields.read("memory_total_bytes", lambda: total, valid=lambda value: value > 0)
    fields.give("memory_source", "nvml")


def _read_driver(library: Any, fields: Any) -> None:
    fields.read("driver_version", lambda: text(library.nvmlSystemGetDriverVersion()))

    def cuda() -> str:
        version = int(library.nvmlSystemGetCudaDriverVersion())
        return f"CUDA {version // 1000}.{version % 1000 // 10}"

    fields.read("runtime_version", cuda)


def _read_power_range(library: Any, handle: Any, fields: Any) -> None:
    try:
        lowest, highest = library.nvmlDeviceGetPowerManagementLimitConstraints(handle)
    except library.NVMLError as error:
        reason = f"NVML answered: {error}"
        fields.absent("power_limit_min_mw", reason)
        fields.absent("power_limit_max_mw", reason)
        return
    fields.read("power_limit_min_mw", lambda: int(lowest))
    fields.read("power_limit_max_mw", lambda: int(highest))


def _max_clock_mhz(library: Any, handle: Any, domain: int) -> int:
    return int(library.nvmlDeviceGetMaxClockInfo(handle, domain))


def _threshold(library: Any, handle: Any, kind: int) -> int:
    return int(library.nvmlDeviceGetTemperatureThreshold(handle, kind))


def _architecture(code: int) -> str | None:
    return _ARCHITECTURES.get(code)


def _mig_enabled(library: Any, handle: Any) -> bool:
    try:
        current, _pending = library.nvmlDeviceGetMigMode(handle)
    except library.NVMLError as error:
        if error_code(error) == NOT_SUPPORTED:
            return False
        raise
    return bool(current)
