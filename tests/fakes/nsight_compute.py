"""Text as `ncu --csv` prints it, on both pages, with metrics made up by hand."""

import csv
import io
from collections.abc import Sequence
from typing import Any

SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
TENSOR = "sm__inst_executed_pipe_tensor_op_hmma.avg.pct_of_peak_sustained_active"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
TIME = "gpu__time_duration.sum"
_HEAD = (
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream",
    "Block Size", "Grid Size", "Device", "CC",
)  # fmt: skip
_BEFORE = (
    "==PROF== Connected to process 4711 (/usr/bin/python3)\n"
    "epoch 1, loss 0.5\n"
    '==PROF== Profiling "a_kernel": 0%....50%....100% - 8 passes\n'
    "==PROF== Disconnected from process 4711\n"
)
_SEEN_AS = {
    SM: ("GPU Speed Of Light Throughput", "Compute (SM) Throughput"),
    MEMORY: ("GPU Speed Of Light Throughput", "Memory Throughput"),
    OCCUPANCY: ("Occupancy", "Achieved Occupancy"),
    TIME: ("GPU Speed Of Light Throughput", "Duration"),
}

Launch = tuple[str, dict[str, Any]]


def raw_page(launches: Sequence[Launch], *, time_unit: str = "us") -> str:
    """One row a launch, and the row of units."""
    names = sorted({name for _, metrics in launches for name in metrics} | {"launch__grid_size"})
    units = [time_unit if name == TIME else "" if name == "launch__grid_size" else "%" for name in names]
    rows = [[*_HEAD, *names], [""] * len(_HEAD) + units]
    for number, (kernel, metrics) in enumerate(launches):
        values = [_number({"launch__grid_size": 12288, **metrics}.get(name, "n/a")) for name in names]
        rows.append([*_common(number, kernel), *values])
    return _BEFORE + _written(rows)


def details_page(launches: Sequence[Launch], *, time_unit: str = "us") -> str:
    """One row a metric, under the names that people see, and a rule here and there."""
    rows = [[*_HEAD, "Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name"]]
    for number, (kernel, metrics) in enumerate(launches):
        for name, value in metrics.items():
            if name in _SEEN_AS:
                unit = time_unit if name == TIME else "%"
                rows.append([*_common(number, kernel), *_SEEN_AS[name], unit, _number(value), ""])
        # The same name for another thing.
        section = "Memory Workload Analysis"
        rows.append([*_common(number, kernel), section, "Memory Throughput", "Gbyte/s", "1,234.5", ""])
        rows.append([*_common(number, kernel), "Occupancy", "", "", "", "Achieved Occupancy"])
    return _BEFORE + _written(rows)


def _common(number: int, kernel: str) -> list[str]:
    return [
        str(number),
        "4711",
        "python3",
        "127.0.0.1",
        kernel,
        "1",
        "7",
        "(128, 1, 1)",
        "(12288, 1, 1)",
        "0",
        "9.0",
    ]


def _number(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:,.2f}"


def _written(rows: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return text.getvalue()
