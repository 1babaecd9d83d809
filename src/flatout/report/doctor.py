"""`doctor` for a terminal: the devices, then every check, each problem with its fix right below."""

from collections import Counter

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from flatout.records.device import Device
from flatout.records.machine import CheckResult, CheckStatus, DoctorReport
from flatout.records.words import memory_size
from flatout.report.plain import is_narrow, line

_STYLES: dict[CheckStatus, str] = {"ok": "green", "warn": "yellow", "fail": "bold red", "unknown": "cyan"}
_LABELS: dict[CheckStatus, str] = {"ok": "ok", "warn": "warn", "fail": "FAIL", "unknown": "?"}


def draw_doctor(report: DoctorReport, console: Console, *, problems_only: bool) -> None:
    """Print the report. Below 80 columns the table becomes a list."""
    for device in report.devices:
        console.print(line(_headline(device), "bold"))
    console.print(line(_host_line(report), "dim"))
    console.print()
    several = sum(device.vendor != "cpu" for device in report.devices) > 1
    shown = [check for check in report.checks if not problems_only or check.status != "ok"]
    if shown:
        draw = _draw_list if is_narrow(console) else _draw_table
        draw(shown, console, several=several)
    console.print(_summary(report))


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


def _draw_table(checks: list[CheckResult], console: Console, *, several: bool) -> None:
    ids = max(len(check.id) for check in checks)
    indent = " " * (6 + ids + 2)
    for check in checks:
        head = Text.assemble(
            (f"{_LABELS[check.status]:<6}", _STYLES[check.status]), line(f"{check.id:<{ids}}  ")
        )
        for words in line(_evidence(check, several=several)).wrap(console, console.width - len(indent)):
            words.rstrip()
            console.print(Text.assemble(head, words))
            head = Text(indent)
        if check.fix and check.status != "ok":
            # Left to the terminal to wrap: a fix that we broke over two lines could not be pasted.
            console.print(Text.assemble(indent, ("fix: ", "dim"), line(check.fix, "bold")), soft_wrap=True)
    console.print()


def _draw_list(checks: list[CheckResult], console: Console, *, several: bool) -> None:
    for check in checks:
        console.print(Text.assemble((_LABELS[check.status], _STYLES[check.status]), " ", line(check.id)))
        console.print(Padding(line(_evidence(check, several=several)), (0, 0, 0, 2)))
        if check.fix and check.status != "ok":
            console.print(Padding(Text.assemble("fix: ", line(check.fix, "bold")), (0, 0, 0, 2)))
    console.print()


def _evidence(check: CheckResult, *, several: bool) -> str:
    if several and check.device_index is not None:
        return f"GPU {check.device_index}: {check.evidence}"
    return check.evidence


def _summary(report: DoctorReport) -> Text:
    counts = Counter(check.status for check in report.checks)
    words = {"fail": "failed", "warn": "to look at", "unknown": "unknown", "ok": "ok"}
    parts = [
        Text(f"{counts[status]} {said}", _STYLES[status])  # type: ignore[index]
        for status, said in words.items()
        if counts[status]  # type: ignore[index]
    ]
    return Text(", ").join(parts)
