"""What an NVIDIA GPU is doing now: one `DeviceSample` from an NVML handle."""

import functools
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from flatout.hardware.nvidia.activity import active_shares
from flatout.hardware.nvidia.gpm import FIELDS as GPM_FIELDS
from flatout.hardware.nvidia.gpm import GpmReader
from flatout.hardware.nvidia.reading import first_of, is_plausible_heat, nvml_readings
from flatout.hardware.nvidia.session import INVALID_ARGUMENT, NO_PERMISSION, NOT_SUPPORTED, error_code
from flatout.hardware.nvidia.throttle import decode_reasons
from flatout.hardware.processes import describe_process
from flatout.records.device import Device, DeviceProcess, DeviceSample, GpuLink
from flatout.records.unknown import Readings

_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_ECC_CORRECTED, _ECC_UNCORRECTED = 0, 1
_SINCE_BOOT, _LIFETIME = 0, 1
_NVLINKS_MAX = 36
_COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
_MHZ = 1_000_000
_DEVICE_PATHS = ("/dev/nvidia", "/dev/dxg")  # the second under WSL
_GRAPHICS = "nvmlDeviceGetGraphicsRunningProcesses"
_PARENT_ONLY = "a MIG instance has no reading of its own for this"
_MIG_ACTIVITY = "MIG is on: NVML does not tell the activity of single processes"
_MIG_PARENT = "MIG is on: activity belongs to the instances"

# Read in thorough samples alone. PCIe's counters take 20 ms each, that of energy 5 ms of a core (seen on an
# H200), a list of processes as many files as these have open; the rest changes by hand, or with a fault.
SELDOM = (
    *("energy_total_mj", "processes"),
    *("power_limit_mw", "fan_speed_share", "persistence_mode", "compute_mode"),
    *("pcie_generation", "pcie_width", "pcie_sent_bytes_per_s", "pcie_received_bytes_per_s", "gpu_links"),
    *("ecc_enabled", "ecc_corrected_since_boot", "ecc_uncorrected_since_boot", "ecc_uncorrected_lifetime"),
    *("memory_rows_remapped", "memory_repair_pending", "memory_repair_failed"),
)

NO_XID = "no Xid since watching began"
# GPM's counters cost as much as everything else in a brief sample, and are means anyway.
_GPM_EVERY_S = 0.5

# What a MIG instance has for itself; everything else is its parent's.
_MIG_FIELDS = frozenset({"memory_used_bytes", "memory_free_bytes", "processes"})


def read_sample(
    library: Any,
    handle: Any,
    device: Device,
    gpm: GpmReader | None,
    taken_at_unix_s: float,
    *,
    earlier: DeviceSample | None = None,
    counted: DeviceSample | None = None,
    xids: tuple[int, int | None] | None = None,
) -> DeviceSample:
    """Read everything that this GPU and driver offer. Raises NVMLError only when the GPU does not answer.

    With an `earlier` sample, the fields of SELDOM are that one's: they change slowly, or are dear; energy is
    that of the sample in which it was `counted`. `xids` are how many were counted, and the last.
    """
    fields = nvml_readings(library)
    _read_memory(library, handle, device, fields)  # also the heartbeat: a lost GPU raises here
    if not device.parent_uuid:
        brief = earlier is not None
        _read_activity(library, handle, device, gpm, fields, gpm_every_s=_GPM_EVERY_S if brief else 0.0)
        _read_clocks(library, handle, fields)
        _read_power_and_heat(library, handle, fields)
    if earlier is not None:
        _carry_over(SELDOM, earlier, fields)
    else:
        _read_seldom(library, handle, device, fields, taken_at_unix_s, counted)
    if xids is not None:
        _give_xids(*xids, fields)
    if device.parent_uuid:
        return _mig_sample(device, fields, taken_at_unix_s)
    return DeviceSample(
        index=device.index,
        uuid=device.uuid,
        taken_at_unix_s=taken_at_unix_s,
        unknown=fields.unknown,
        **fields.values,
    )


def _give_xids(count: int, last: int | None, fields: Readings) -> None:
    fields.give("xid_count", count)
    if last is None:
        fields.absent("xid_last", NO_XID)
    else:
        fields.give("xid_last", last)


def _read_seldom(
    library: Any,
    handle: Any,
    device: Device,
    fields: Readings,
    taken_at_unix_s: float,
    counted: DeviceSample | None,
) -> None:
    """Everything in SELDOM."""
    _read_processes(library, handle, device, fields, taken_at_unix_s)
    if device.parent_uuid:
        return
    if counted is not None:
        _carry_over(("energy_total_mj",), counted, fields)
    else:
        fields.read("energy_total_mj", lambda: int(library.nvmlDeviceGetTotalEnergyConsumption(handle)))
    _read_settings(library, handle, fields)
    _read_links(library, handle, fields)
    _read_memory_errors(library, handle, fields)


def _carry_over(names: Sequence[str], earlier: DeviceSample, fields: Readings) -> None:
    for field in names:
        value = getattr(earlier, field)
        if value is None:
            fields.absent(field, earlier.unknown[field])
        else:
            fields.give(field, value)


def _read_settings(library: Any, handle: Any, fields: Readings) -> None:
    fields.read(
        "power_limit_mw",
        lambda: first_of(
            lambda: int(library.nvmlDeviceGetEnforcedPowerLimit(handle)),
            lambda: int(library.nvmlDeviceGetPowerManagementLimit(handle)),
        ),
    )
    # A fan may be driven beyond its nominal speed.
    fields.read(
        "fan_speed_share",
        lambda: library.nvmlDeviceGetFanSpeed(handle),
        scale=0.01,
        valid=lambda share: 0 <= share <= 2,
    )
    fields.read("persistence_mode", lambda: bool(library.nvmlDeviceGetPersistenceMode(handle)))
    fields.read("compute_mode", lambda: _COMPUTE_MODES.get(library.nvmlDeviceGetComputeMode(handle)))


def _mig_sample(device: Device, fields: Readings, taken_at_unix_s: float) -> DeviceSample:
    own = fields.only(_MIG_FIELDS)
    identity = {"index", "uuid", "taken_at_unix_s", "unknown", "state", "state_reason", "activity_source"}
    for field in DeviceSample.__dataclass_fields__:
        if field not in identity and field not in own.values:
            own.absent(field, _PARENT_ONLY)
    return DeviceSample(
        index=device.index,
        uuid=device.uuid,
        taken_at_unix_s=taken_at_unix_s,
        unknown=own.unknown,
        **own.values,
    )


def _read_memory(library: Any, handle: Any, device: Device, fields: Readings) -> None:
    version = getattr(library, "nvmlMemory_v2", None)

    def newer() -> Any:
        if version is None:
            raise AttributeError
        return library.nvmlDeviceGetMemoryInfo(handle, version)

    try:
        # The newer call leaves the driver's own reserve out of "used", as nvidia-smi does.
        memory = first_of(newer, lambda: library.nvmlDeviceGetMemoryInfo(handle))
    except library.NVMLError as error:
        whole_mig_card = bool(device.mig_enabled) and not device.parent_uuid
        if error_code(error) == NOT_SUPPORTED:
            reason = "the GPU shares the machine's memory: NVML has no figure for it"
        elif error_code(error) == NO_PERMISSION and whole_mig_card:
            reason = "MIG is on: only root sees the whole card's memory"
        else:
            raise
        fields.absent("memory_used_bytes", reason)
        fields.absent("memory_free_bytes", reason)
        return
    fields.read("memory_used_bytes", lambda: int(memory.used))
    fields.read("memory_free_bytes", lambda: int(memory.free))


def _read_activity(
    library: Any,
    handle: Any,
    device: Device,
    gpm: GpmReader | None,
    fields: Readings,
    *,
    gpm_every_s: float,
) -> None:
    if device.mig_enabled:
        for field in ("kernel_running_share", "memory_bus_active_share", *GPM_FIELDS):
            fields.absent(field, _MIG_PARENT)
        return
    rates = functools.cache(lambda: library.nvmlDeviceGetUtilizationRates(handle))
    fields.read("kernel_running_share", lambda: float(rates().gpu), scale=0.01, valid=_is_share)
    fields.read("memory_bus_active_share", lambda: float(rates().memory), scale=0.01, valid=_is_share)
    fields.give("activity_source", "nvml utilization")
    _read_gpm(library, gpm, fields, gpm_every_s)


def _is_share(share: float) -> bool:
    return 0 <= share <= 1


def _read_gpm(library: Any, gpm: GpmReader | None, fields: Readings, every_s: float) -> None:
    if gpm is None or not gpm.supported:
        for field in GPM_FIELDS:
            fields.absent(field, "needs NVML's GPM counters: Hopper or newer, with permission")
        return
    first = not gpm.ready
    try:
        shares = gpm.read(at_most_every_s=every_s)
    except library.NVMLError as error:
        for field in GPM_FIELDS:
            fields.absent(field, f"NVML's GPM counters answered: {error}")
        return
    for field in GPM_FIELDS:
        if field in shares:
            fields.give(field, shares[field])
        else:
            why = "GPM compares two samples, and this is the first" if first else "GPM gave no value for it"
            fields.absent(field, why)
    if shares:
        fields.give("activity_source", "nvml utilization, nvml gpm")


def _read_clocks(library: Any, handle: Any, fields: Readings) -> None:
    for field, domain in (("clock_compute_hz", _CLOCK_SM), ("clock_memory_hz", _CLOCK_MEMORY)):
        fields.read(field, partial(_clock_mhz, library, handle, domain), scale=_MHZ)
    fields.read(
        "performance_state",
        lambda: int(library.nvmlDeviceGetPerformanceState(handle)),
        valid=lambda p: p < 16,
    )
    mask = fields.read(
        "throttle_reasons",
        lambda: first_of(
            lambda: int(library.nvmlDeviceGetCurrentClocksEventReasons(handle)),
            lambda: int(library.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        ),
    )
    if mask is not None:
        fields.give("throttle_reasons", decode_reasons(mask))


def _read_power_and_heat(library: Any, handle: Any, fields: Readings) -> None:
    fields.read("power_draw_mw", lambda: int(library.nvmlDeviceGetPowerUsage(handle)))
    fields.read(
        "temperature_c", lambda: int(library.nvmlDeviceGetTemperature(handle, 0)), valid=is_plausible_heat
    )
    fields.read("temperature_memory_c", lambda: _memory_temperature(library, handle), valid=is_plausible_heat)


def _memory_temperature(library: Any, handle: Any) -> int:
    [value] = library.nvmlDeviceGetFieldValues(handle, [library.NVML_FI_DEV_MEMORY_TEMP])
    if value.nvmlReturn != 0:
        raise library.NVMLError(value.nvmlReturn)
    return int(value.value.uiVal)


def _read_links(library: Any, handle: Any, fields: Readings) -> None:
    fields.read("pcie_generation", lambda: int(library.nvmlDeviceGetCurrPcieLinkGeneration(handle)))
    fields.read("pcie_width", lambda: int(library.nvmlDeviceGetCurrPcieLinkWidth(handle)))
    # NVML answers in KB/s over its own 20 ms window.
    for field, counter in (("pcie_sent_bytes_per_s", 0), ("pcie_received_bytes_per_s", 1)):
        fields.read(field, partial(_pcie_throughput, library, handle, counter), scale=1000)
    fields.read("gpu_links", lambda: _nvlinks(library, handle))


def _clock_mhz(library: Any, handle: Any, domain: int) -> int:
    return int(library.nvmlDeviceGetClockInfo(handle, domain))


def _pcie_throughput(library: Any, handle: Any, counter: int) -> int:
    return int(library.nvmlDeviceGetPcieThroughput(handle, counter))


def _nvlinks(library: Any, handle: Any) -> tuple[GpuLink, ...]:
    links = []
    for number in range(_NVLINKS_MAX):
        try:
            active = bool(library.nvmlDeviceGetNvLinkState(handle, number))
        except library.NVMLError as error:
            if number and error_code(error) in (INVALID_ARGUMENT, NOT_SUPPORTED):
                break
            raise
        links.append(GpuLink(link=number, active=active))
    return tuple(links)


def _ecc_errors(library: Any, handle: Any, kind: int, period: int) -> int:
    return int(library.nvmlDeviceGetTotalEccErrors(handle, kind, period))


def _read_memory_errors(library: Any, handle: Any, fields: Readings) -> None:
    fields.read("ecc_enabled", lambda: bool(library.nvmlDeviceGetEccMode(handle)[0]))
    for field, kind, period in (
        ("ecc_corrected_since_boot", _ECC_CORRECTED, _SINCE_BOOT),
        ("ecc_uncorrected_since_boot", _ECC_UNCORRECTED, _SINCE_BOOT),
        ("ecc_uncorrected_lifetime", _ECC_UNCORRECTED, _LIFETIME),
    ):
        fields.read(field, partial(_ecc_errors, library, handle, kind, period))
    try:
        corrected, uncorrected, pending, failed = library.nvmlDeviceGetRemappedRows(handle)
    except (library.NVMLError, AttributeError):
        _read_retired_pages(library, handle, fields)
        return
    fields.give("memory_rows_remapped", int(corrected) + int(uncorrected))
    fields.give("memory_repair_pending", bool(pending))
    fields.give("memory_repair_failed", bool(failed))


def _read_retired_pages(library: Any, handle: Any, fields: Readings) -> None:
    """Before Ampere, GPUs retire pages instead of remapping rows."""
    fields.read(
        "memory_rows_remapped",
        lambda: sum(len(library.nvmlDeviceGetRetiredPages(handle, cause)) for cause in (0, 1)),
    )
    fields.read("memory_repair_pending", lambda: bool(library.nvmlDeviceGetRetiredPagesPendingStatus(handle)))
    fields.absent("memory_repair_failed", "this GPU has no row remapper")


def _read_processes(
    library: Any, handle: Any, device: Device, fields: Readings, taken_at_unix_s: float
) -> None:
    shares: dict[int, float] | None
    shares, reason = None, _MIG_ACTIVITY
    if not device.parent_uuid and not device.mig_enabled:
        shares, reason = active_shares(library, handle, taken_at_unix_s)

    def listed(name: str) -> Any:
        # By version: the unversioned names raise an error of their own on older drivers.
        return first_of(
            lambda: getattr(library, f"{name}_v3")(handle), lambda: getattr(library, f"{name}_v2")(handle)
        )

    def processes() -> tuple[DeviceProcess, ...]:
        # A browser or a desktop computes a little too: whoever draws is listed as drawing.
        found: dict[int, DeviceProcess] = {}
        kinds: tuple[tuple[Literal["graphics", "compute"], str], ...]
        kinds = (("compute", "nvmlDeviceGetComputeRunningProcesses"), ("graphics", _GRAPHICS))
        for kind, name in kinds:
            for entry in listed(name):
                found[entry.pid] = describe_process(
                    int(entry.pid),
                    kind=kind,
                    memory_bytes=_held(entry),
                    active_share=shares.get(int(entry.pid), 0.0) if shares is not None else None,
                    activity_reason=reason,
                    device_paths=_DEVICE_PATHS,
                )
        return tuple(found.values())

    fields.read("processes", processes)


def _held(entry: Any) -> int | None:
    held = entry.usedGpuMemory
    return None if held is None or held >= 1 << 62 else int(held)
