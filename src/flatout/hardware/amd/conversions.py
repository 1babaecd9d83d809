"""amdsmi's units, counters and lists turned into ours, and what makes a reading plausible."""

import re
from typing import Any

from flatout.hardware.amd.answers import Answers, Placeholder, as_number
from flatout.hardware.processes import PID_MAX
from flatout.records.device import Device, DeviceProcess, DeviceSample

# Mega-transfers a second and lane -> PCIe generation. Some releases report giga-transfers.
_GENERATIONS = {2500: 1, 5000: 2, 8000: 3, 16000: 4, 32000: 5, 64000: 6}


def power_draw_mw(answers: Answers) -> int:
    """Milliwatts, from whichever of the two fields this card fills; the other is "N/A" or 0 W."""

    def filled(key: str) -> int:
        found = answers.whole("amdsmi_get_power_info", key, scale=1000)
        if found == 0:
            raise Placeholder(found)
        return found

    return answers.first(lambda: filled("current_socket_power"), lambda: filled("average_socket_power"))


def energy_mj(answers: Answers) -> int:
    """Millijoules since the driver was loaded: a counter times its resolution in microjoules."""
    function = "amdsmi_get_energy_count"
    counter = answers.first(
        lambda: as_number(answers.get(function, "energy_accumulator")),
        lambda: as_number(answers.get(function, "power")),  # its name in older releases
    )
    return round(counter * answers.number(function, "counter_resolution") / 1000)


def fan_share(answers: Answers) -> float:
    """The fan's speed as a share of its fastest."""
    fastest = answers.number("amdsmi_get_gpu_fan_speed_max", arguments=(0,))
    if fastest <= 0:
        raise Placeholder(fastest)
    return answers.number("amdsmi_get_gpu_fan_speed", arguments=(0,)) / fastest


def pcie_generation(answers: Answers) -> int:
    """The PCIe generation that the link runs at now."""
    speed = answers.whole("amdsmi_get_pcie_info", "pcie_metric", "pcie_speed")
    found = _GENERATIONS.get(speed if speed >= 1000 else speed * 1000)
    if found is None:
        raise ValueError(f"a PCIe speed that belongs to no generation ({speed})")
    return found


def processes(answers: Answers) -> tuple[DeviceProcess, ...]:
    """The processes that hold memory on a GPU, as amdsmi lists them."""
    return tuple(_process(entry) for entry in answers.get("amdsmi_get_gpu_process_list"))


def _process(entry: dict[str, Any]) -> DeviceProcess:
    """What the driver says of a process; a PID or a name that cannot be is not passed on as if it were."""
    pid, name, memory, unknown = int(entry["pid"]), entry.get("name"), None, {}
    try:
        memory = round(as_number(entry.get("memory_usage", {}).get("vram_mem", entry.get("mem"))))
    except Placeholder as error:
        unknown["memory_bytes"] = str(error)
    if not isinstance(name, str) or name in ("", "N/A"):
        name, unknown["name"] = None, "amdsmi does not see the process's name"
    if not 0 < pid <= PID_MAX:
        name, unknown["name"] = None, f"unknown process: {pid} is not a possible PID"
    return DeviceProcess(pid=pid, memory_bytes=memory, name=name, unknown=unknown)


def down(device: Device, taken_at: float, reason: str, unknown: dict[str, str] | None = None) -> DeviceSample:
    """A sample of a GPU that gives no answer."""
    return DeviceSample(
        index=device.index,
        uuid=device.uuid,
        taken_at_unix_s=taken_at,
        state="down",
        state_reason=reason,
        unknown=unknown or {},
    )


def is_share(found: float) -> bool:
    """A fraction from 0 to 1."""
    return 0 <= found <= 1


def is_positive(found: float) -> bool:
    """More than nothing."""
    return found > 0


def is_not_negative(found: float) -> bool:
    """Nothing or more."""
    return found >= 0


def is_lanes(found: float) -> bool:
    """A number of PCIe lanes."""
    return 1 <= found <= 32


def is_gfx_target(found: str) -> bool:
    """A compiler target such as gfx942."""
    return re.fullmatch(r"gfx[0-9a-f]{3,5}", found) is not None
