"""`doctor` for a terminal: the devices, then every check, each problem with its fix right below."""

from collections import Counter

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from flatout.records.device import Device
from flatout.records.machine import CheckResult, CheckStatus, DoctorReport
from flatout.records.words import gigabytes
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
    if is_narrow(console):
        _draw_list(shown, console, several=several)
    else:
        _draw_table(shown, console, several=several)
    console.print(_summary(report))


def _headline(device: Device) -> str:
    parts = [device.name]
    if device.memory_total_bytes is not None:
        source = "" if device.memory_source in ("", "nvml", "psutil") else f" ({device.memory_source})"
        parts.append(gigabytes(device.memory_total_bytes) + source)
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
    return ", ".join([report.host.system, f"Python {report.host.python_version}", *names])


def _draw_table(checks: list[CheckResult], console: Console, *, several: bool) -> None:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=4)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        words = line(_evidence(check, several=several))
        if check.fix and check.status != "ok":
            words = Text.assemble(words, "\n", ("fix: ", "dim"), line(check.fix, "bold"))
        table.add_row(Text(_LABELS[check.status], _STYLES[check.status]), line(check.id), words)
    if checks:
        console.print(table)
        console.print()


def _draw_list(checks: list[CheckResult], console: Console, *, several: bool) -> None:
    for check in checks:
        console.print(Text.assemble((_LABELS[check.status], _STYLES[check.status]), " ", line(check.id)))
        console.print(Padding(line(_evidence(check, several=several)), (0, 0, 0, 2)))
        if check.fix and check.status != "ok":
            console.print(Padding(Text.assemble("fix: ", line(check.fix, "bold")), (0, 0, 0, 2)))
    if checks:
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
