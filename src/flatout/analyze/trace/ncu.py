"""What `ncu --csv` printed: a device's own counters, kernel by kernel, and what binds each.

Two pages are read. `--page raw` has one row a launch, a column a metric, and a second head with units;
`--page details` one row a metric, under the names that people see. Before, between and after the rows may
stand what ncu or the program said. Numbers have commas in them, and "n/a" where there is no such counter.
"""

import csv
import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from flatout.analyze.trace.chunks import NotATrace
from flatout.analyze.trace.names import same_name
from flatout.analyze.trace.sources import NCU_HEADER
from flatout.records.trace import Bound, CounterUse

# Metrics by what they tell, in the order in which they are believed; names of both pages, old ones too.
_TIME = ("gpu__time_duration.sum", "gpu__time_duration_measured_wallclock.sum", "Duration")
_SM = (
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "Compute (SM) Throughput", "Compute (SM) [%]", "SM [%]", "SOL SM",
)  # fmt: skip
_MEMORY = (
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__compute_memory_access_throughput.avg.pct_of_peak_sustained_elapsed",
    "Memory Throughput", "Memory [%]", "SOL Memory",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed", "DRAM Throughput",
)  # fmt: skip
_OCCUPANCY = ("sm__warps_active.avg.pct_of_peak_sustained_active", "Achieved Occupancy")
# Every generation has pipes of its own: the busiest of them counts.
_TENSOR = re.compile(
    r"^sm__(inst_executed_)?pipe_tensor\w*\.(avg|sum)\.pct_of_peak_sustained_(active|elapsed)$"
)
_MS = {
    "ns": 1e-6, "nsecond": 1e-6, "us": 1e-3, "usecond": 1e-3,
    "ms": 1.0, "msecond": 1.0, "s": 1e3, "second": 1e3,
}  # fmt: skip
# Nsight Compute's own rule: below this share of both limits, neither is what a kernel waits for.
_SATURATED = 0.6
# No launch has that much to say: a longer line is something else.
_LONGEST_LINE = 1 << 20

Launch = dict[str, float]


def read_counters(path: Path) -> tuple[CounterUse, ...]:
    """Kernels by the time that they take. Raises NotATrace where ncu wrote none of it."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise NotATrace(path, error.strerror or "it cannot be read") from error
    found = NCU_HEADER.search(data)
    if found is None:
        raise NotATrace(
            path,
            _complaint(data) or ("it is empty" if not data.strip() else "it has no head of a table of ncu's"),
            expected="what `ncu --csv` prints, with --page raw or --page details",
            remedy="ncu --csv --page raw --log-file kernels.csv python train.py",
        )
    launches: dict[str, list[Launch]] = defaultdict(list)
    for kernel, launch in _launches(data[found.start() :].decode(errors="replace")):
        launches[kernel].append(launch)
    if not launches:
        raise NotATrace(path, _complaint(data) or "ncu counted no kernel")
    uses = [_use(kernel, own) for kernel, own in launches.items()]
    return tuple(sorted(uses, key=lambda use: -(use.ms or 0.0)))


def beside_a_trace(counters: tuple[CounterUse, ...], ms_by_name: dict[str, float]) -> tuple[CounterUse, ...]:
    """The same with each kernel's time in a trace, under the name that it has there."""
    spelled = {same_name(name): name for name in ms_by_name}
    joined = (_joined(use, spelled.get(same_name(use.kernel)), ms_by_name) for use in counters)
    return tuple(sorted(joined, key=lambda use: -(use.step_ms or 0.0)))


def _joined(use: CounterUse, name: str | None, ms_by_name: dict[str, float]) -> CounterUse:
    if name is None:
        return use
    reasons = {field: reason for field, reason in use.unknown.items() if field != "step_ms"}
    return dataclasses.replace(use, kernel=name, step_ms=ms_by_name[name], unknown=reasons)


def _complaint(data: bytes) -> str:
    """What ncu said when it could not."""
    found = re.search(rb"^==ERROR== ([^\r\n]+)", data, re.MULTILINE)
    return f"ncu failed: {found[1].decode(errors='replace').strip()}" if found else ""


def _launches(text: str) -> Iterator[tuple[str, Launch]]:
    """Every launch with its metrics: in milliseconds, shares of one, or as they are."""
    head: list[str] = []
    units: dict[str, str] = {}
    details: dict[tuple[str, str, str], Launch] = {}
    for row in _rows(text):
        if "Kernel Name" in row and "ID" in row:
            head, units = row, {}
            continue
        cells = dict(zip(head, row, strict=False))
        if len(row) < len(head) and "Metric Name" not in cells:
            continue  # a word of the program's between the rows
        kernel = cells.get("Kernel Name", "")
        if "Metric Name" in cells:
            if kernel:
                key = (cells.get("ID", ""), cells.get("Process ID", ""), kernel)
                launch = details.setdefault(key, {})
                _take(
                    launch, cells["Metric Name"], cells.get("Metric Value", ""), cells.get("Metric Unit", "")
                )
        elif not cells.get("ID"):
            units = cells
        elif kernel:
            launch = {}
            for name, value in cells.items():
                _take(launch, name, value, units.get(name, ""))
            yield kernel, launch
    yield from ((key[2], launch) for key, launch in details.items())


def _rows(text: str) -> Iterator[list[str]]:
    """Line by line: one with a quote too many must not take the next with it."""
    for line in text.splitlines():
        if "," not in line or line.startswith("==") or len(line) > _LONGEST_LINE:
            continue
        try:
            yield next(csv.reader([line]), [])
        except csv.Error:
            continue


def _take(launch: Launch, name: str, value: str, unit: str) -> None:
    try:
        number = float(value.replace(",", ""))
    except ValueError:
        return
    if not math.isfinite(number) or number < 0:
        return
    if name in _TIME:
        scale = _MS.get(unit.lower())
        if scale is not None:
            launch[name] = number * scale
    # Memory throughput goes by one name as a share and as bytes a second.
    elif unit == "%" or (
        not unit and (name.endswith(("[%]", "_active", "_elapsed")) or name.startswith("SOL"))
    ):
        launch.setdefault(name, number / 100)


def _use(kernel: str, launches: list[Launch]) -> CounterUse:
    times = [_first(launch, _TIME) for launch in launches]
    known = [time for time in times if time is not None]
    weights = [time if time is not None else 0.0 for time in times] if any(known) else [1.0] * len(launches)
    sm = _mean(weights, [_first(launch, _SM) for launch in launches])
    memory = _mean(weights, [_first(launch, _MEMORY) for launch in launches])
    return CounterUse(
        kernel=kernel,
        calls=len(launches),
        ms=sum(known) if known else None,
        sm_share=sm,
        memory_share=memory,
        tensor_share=_mean(weights, [_busiest_pipe(launch) for launch in launches]),
        occupancy=_mean(weights, [_first(launch, _OCCUPANCY) for launch in launches]),
        bound=_bound(sm, memory),
    )


def _first(launch: Launch, names: tuple[str, ...]) -> float | None:
    return next((launch[name] for name in names if name in launch), None)


def _busiest_pipe(launch: Launch) -> float | None:
    return max((value for name, value in launch.items() if _TENSOR.match(name)), default=None)


def _mean(weights: list[float], values: list[float | None]) -> float | None:
    """By the time of each launch; of those that have a value."""
    pairs = [(weight, value) for weight, value in zip(weights, values, strict=True) if value is not None]
    whole = sum(weight for weight, _ in pairs)
    return sum(weight * value for weight, value in pairs) / whole if whole else None


def _bound(sm: float | None, memory: float | None) -> Bound | None:
    if sm is None or memory is None:
        return None
    if max(sm, memory) < _SATURATED:
        return "latency"
    return "compute" if sm >= memory else "memory"
