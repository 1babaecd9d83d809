"""`doctor` for a terminal: the devices, then every check, each problem with its fix right below."""

from rich.console import Console

from flatout.records.device import Device
from flatout.records.machine import DoctorReport
from flatout.records.words import memory_size
from flatout.report.checks import draw_checks, summary
from flatout.report.plain import line


def draw_doctor(report: DoctorReport, console: Console, *, problems_only: bool) -> None:
    """Print the report. Below 80 columns the table becomes a list."""
    for device in report.devices:
        console.print(line(_headline(device), "bold"))
    console.print(line(_host_line(report), "dim"))
    console.print()
    several = sum(device.vendor != "cpu" for device in report.devices) > 1
    shown = [check for check in report.checks if not problems_only or check.status != "ok"]
    draw_checks(shown, console, several=several)
    console.print(summary(report.checks))


def _headline(device: Device) -> str:
    parts = [device.name]
    if device.memory_total_bytes is not None:
        source = "" if device.memory_source in ("", "nvml", "psutil") else f" ({device.memory_source})"
        parts.append(memory_size(device.memory_total_bytes) + source)
    if device.vendor == "cpu":
        if device.core_count is not None:
            parts.append(f"{device.core_count} cores")
        return "CPU    " + ", ".join(parts)
    if device.compute_capability:
        parts.append(f"compute capability {device.compute_capability}")
    if device.driver_version:
        parts.append(f"driver {device.driver_version}")
    if device.runtime_version:
        parts.append(device.runtime_version)
    label = "MIG" if device.parent_uuid else "GPU"
    return f"{label} {device.index}  " + ", ".join(parts)


def _host_line(report: DoctorReport) -> str:
    installed = [found for found in report.frameworks if found.installed]
    names = [f"{found.name} {found.version or 'that cannot be used'}" for found in installed]
    pythons = [found.python_version for found in report.frameworks if found.python_version]
    python = pythons[0] if pythons else report.host.python_version
    return ", ".join([report.host.system, f"Python {python}", *names])
