"""What a trace says, from its timeline: the waterfall, kernels, operators, and where the host waits."""

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from flatout.analyze.steady import median_interval, percentile
from flatout.analyze.trace.chunks import head_of
from flatout.analyze.trace.events import CODES, Columns
from flatout.analyze.trace.host import own_times
from flatout.analyze.trace.kernels import is_of_a_vector, uses_tensor_cores
from flatout.analyze.trace.modules import modules_of
from flatout.analyze.trace.ncu import beside_a_trace, read_counters
from flatout.analyze.trace.reading import OnRead, read_trace
from flatout.analyze.trace.rows import launchers
from flatout.analyze.trace.sources import source_of
from flatout.analyze.trace.spans import total
from flatout.analyze.trace.steps import Steps
from flatout.analyze.trace.syncs import sync_points
from flatout.analyze.trace.timeline import Timeline, timeline
from flatout.records.step import Share, StepTimes
from flatout.records.trace import CounterUse, KernelUse, OperatorUse, RankTrace, TraceSummary

_TOP = 25
_LONGEST_NAME = 90
# Of the time, what dominates; times a step and microseconds each, what should be batched.
_DOMINATES = 0.3
_OFTEN, _SHORT_US = 300, 6.0
_NO_STEPS = "no steps are marked"
_INCOMPLETE = "the trace is incomplete: kernels of CUDA graphs are missing"
# What cannot be told of a rank then.
_OF_ALL_KERNELS = ("busy_share", "exposed_communication_ms", "alone_ms")
_MARKS = (
    "torch marks them at profiler.step() only where the profiler has a schedule=; NVTX ranges do, as --nvtx "
    "writes them"
)
_ORDER = (
    "input_wait", "host_to_device", "sync_stall", "launch_gap", "matmul", "attention", "memory_bound",
    "optimizer", "communication", "other_gpu", "host_compute", "unattributed",
)  # fmt: skip


def summarize(
    paths: list[Path], *, processes: int | None = None, on_read: OnRead = lambda _done, _all: None
) -> TraceSummary:
    """All files, traces one a rank, counters beside them; raises NotATrace for the first that is neither."""
    traces = [path for path in paths if source_of(path) != "ncu"]
    counters = tuple(use for path in paths if path not in traces for use in read_counters(path))
    if not traces:
        return _of_counters(paths, counters)
    ranks: list[RankTrace] = []
    slowest: tuple[tuple[bool, float], TraceSummary] | None = None
    shown, events = 0, 0
    for number, path in enumerate(traces):
        columns = read_trace(path, processes=processes, on_read=on_read)
        found = timeline(columns)
        head = _head(path)
        summary = _summary(path, columns, found, head)
        if counters:
            summary = dataclasses.replace(summary, counters=beside_a_trace(counters, _kernel_ms(found)))
        ranks.append(_rank(path, found, head, summary))
        events += summary.events
        # The length of a whole trace says nothing beside those of steps.
        pace = (True, summary.step_ms.p50) if summary.step_ms is not None else (False, found.length / 1e6)
        if slowest is None or pace > slowest[0]:
            slowest, shown = (pace, summary), number
    assert slowest is not None
    ranks[shown] = dataclasses.replace(ranks[shown], shown=True)
    files = tuple(map(str, paths))
    several = tuple(ranks) if len(traces) > 1 else ()
    return dataclasses.replace(slowest[1], files=files, events=events, ranks=several)


def _of_counters(paths: list[Path], counters: tuple[CounterUse, ...]) -> TraceSummary:
    """Counters alone: they tell what binds a kernel, not where a step's time goes."""
    missing = (
        "step_ms", "device_name", "busy_share", "tensor_core_share", "off_tensor_cores_share",
        "kernels_per_step",
    )  # fmt: skip
    return TraceSummary(
        files=tuple(map(str, paths)),
        events=0,
        steps=0,
        step_ms=None,
        device_name=None,
        busy_share=None,
        waterfall=(),
        kernels=(),
        operators=(),
        syncs=(),
        tensor_core_share=None,
        kernels_per_step=None,
        counters=tuple(sorted(counters, key=lambda use: -(use.ms or 0.0))),
        unknown=dict.fromkeys(missing, "counters were given, and no trace beside them"),
    )


def _summary(path: Path, columns: Columns, found: Timeline, head: dict[str, Any]) -> TraceSummary:
    has_device = bool(len(found.device_rows))
    busy = found.length - total(found.idle) if has_device and not found.lost_graphs else None
    on_cores, off_cores = _tensor_core_shares(found)
    kernels, operators = _kernels(found), _operators(found)
    name = columns.device_name or _device_name(head)
    reasons = {}
    if not found.step_ms:
        reasons["step_ms"] = f"{_NO_STEPS} ({_MARKS}): all times are of the whole trace"
    if found.lost_graphs:
        reasons["busy_share"] = _INCOMPLETE
    if on_cores is None and has_device:
        why = "no product or convolution whose name says on what it runs"
        reasons |= {"tensor_core_share": why, "off_tensor_cores_share": why}
    return TraceSummary(
        files=(str(path),),
        events=len(columns.start),
        steps=len(found.step_ms),
        step_ms=_step_times(found.marked),
        device_name=str(name) if has_device and name else None,
        busy_share=busy / found.length if busy is not None and found.length else None,
        waterfall=_waterfall(found),
        kernels=kernels,
        operators=operators,
        syncs=sync_points(found)[:_TOP],
        modules=modules_of(found),
        tensor_core_share=on_cores,
        off_tensor_cores_share=off_cores,
        kernels_per_step=len(found.device_rows) / found.steps if has_device else None,
        skipped_events=columns.skipped,
        advice=tuple(_advice(kernels, operators, "a step" if found.step_ms else "in all")),
        notes=_notes(columns, found),
        unknown=reasons,
    )


def _step_times(marked: Steps) -> StepTimes | None:
    values = marked.step_ms
    interval = median_interval(values)
    if interval is None:
        return None
    return StepTimes(
        p50=interval.median,
        p95=percentile(values, 0.95),
        mean=statistics.fmean(values),
        low=interval.low,
        high=interval.high,
        clock=marked.clock,
    )


def _waterfall(found: Timeline) -> tuple[Share, ...]:
    if not found.length:
        return ()
    return tuple(
        Share(part=part, ms=found.ms_of(taken), share=taken / found.length)
        for part in _ORDER
        if (taken := total(found.parts[part]) if part in found.parts else 0)
    )


def _kernels(found: Timeline) -> tuple[KernelUse, ...]:
    columns, rows = found.columns, found.device_rows
    if not len(rows):
        return ()
    names, lengths = columns.name[rows], columns.length[rows]
    size = len(columns.names)
    calls, taken = np.bincount(names, minlength=size), np.bincount(names, weights=lengths, minlength=size)
    whole = taken.sum() or 1.0
    return tuple(
        KernelUse(
            name=columns.names[number],
            kind=found.kinds[number],
            calls=float(calls[number]) / found.steps,
            ms=found.ms_of(float(taken[number])),
            mean_us=float(taken[number] / calls[number]) / 1000,
            share=float(taken[number] / whole),
            tensor_cores=uses_tensor_cores(columns.names[number])
            if found.kinds[number] in ("matmul", "convolution")
            else None,
        )
        for number in np.argsort(-taken)[:_TOP]
        if calls[number]
    )


def _kernel_ms(found: Timeline) -> dict[str, float]:
    """All kernels, by name."""
    columns, rows = found.columns, found.device_rows
    if not len(rows):
        return {}
    taken = np.bincount(columns.name[rows], weights=columns.length[rows], minlength=len(columns.names))
    return {columns.names[number]: found.ms_of(float(taken[number])) for number in np.flatnonzero(taken)}


def _operators(found: Timeline) -> tuple[OperatorUse, ...]:
    """By what they launched."""
    columns, rows = found.columns, found.device_rows
    if not len(rows):
        return _most(found, *own_times(columns, found.start, found.end))
    operators, launched = launchers(columns, rows)
    if not len(operators):
        return ()
    names, lengths = columns.name[operators], columns.length[launched]
    size = len(columns.names)
    taken = np.bincount(names, weights=lengths, minlength=size)
    return _most(found, np.bincount(names, minlength=size), taken, float(columns.length[rows].sum()))


def _most(found: Timeline, calls: Any, taken: Any, whole: float = 0.0) -> tuple[OperatorUse, ...]:
    """Those that take most, by name."""
    return tuple(
        OperatorUse(
            name=found.columns.names[number],
            calls=float(calls[number]) / found.steps,
            ms=found.ms_of(float(taken[number])),
            share=float(taken[number]) / (whole or float(taken.sum()) or 1.0),
        )
        for number in np.argsort(-taken)[:_TOP]
        if calls[number]
    )


def _tensor_core_shares(found: Timeline) -> tuple[float | None, float | None]:
    """On tensor cores, of products whose names say; and off them, of all. A vector has no use for them."""
    columns, rows = found.columns, found.device_rows
    taken: dict[bool | None, float] = dict.fromkeys((True, False, None), 0.0)
    if not len(rows):
        return None, None
    lengths = np.bincount(columns.name[rows], weights=columns.length[rows], minlength=len(columns.names))
    for number in np.flatnonzero(lengths):
        name = columns.names[number]
        if found.kinds[number] in ("matmul", "convolution") and not is_of_a_vector(name):
            taken[uses_tensor_cores(name)] += float(lengths[number])
    told, whole = taken[True] + taken[False], sum(taken.values())
    return (taken[True] / told if told else None), (taken[False] / whole if told else None)


def _rank(path: Path, found: Timeline, head: dict[str, Any], summary: TraceSummary) -> RankTrace:
    ranks = head.get("distributedInfo")
    rank = ranks.get("rank") if isinstance(ranks, dict) else None
    talks = found.parts.get("communication")
    # Where the device computes at the same time, the instant is not given to communication.
    exposed = total(talks) if talks is not None else 0
    is_whole = bool(len(found.device_rows)) and not found.lost_graphs
    return RankTrace(
        file=str(path),
        rank=rank if isinstance(rank, int) else None,
        step_ms=summary.step_ms.p50 if summary.step_ms is not None else None,
        busy_share=summary.busy_share,
        exposed_communication_ms=found.ms_of(exposed) if is_whole else None,
        alone_ms=found.ms_of(found.length - exposed) if is_whole and found.step_ms else None,
        unknown={
            **({} if summary.step_ms is not None else {"step_ms": _NO_STEPS}),
            **(dict.fromkeys(_OF_ALL_KERNELS, _INCOMPLETE) if found.lost_graphs else {}),
        },
    )


def _device_name(head: dict[str, Any]) -> Any:
    devices = head.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices else None
    return first.get("name") if isinstance(first, dict) else None


def _head(path: Path) -> dict[str, Any]:
    """What the file says of its device and its rank; nothing where that cannot be read."""
    text = head_of(path).rstrip().rstrip(b",")
    try:
        found = msgspec.json.decode(text + b"}") if text.startswith(b"{") and len(text) > 1 else {}
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _advice(kernels: Sequence[KernelUse], operators: Sequence[OperatorUse], per: str) -> list[str]:
    """What dominates, and what comes so often and is so short that it should be done at once."""
    told = []
    if kernels and kernels[0].share >= _DOMINATES:
        told.append(
            f"{_short(kernels[0].name)} dominates: {kernels[0].share:.0%} of what the device computes"
        )
    elif not kernels and operators and operators[0].share >= _DOMINATES:
        told.append(
            f"{operators[0].name} dominates: {operators[0].share:.0%} of the host's time in operators"
        )
    each_us = {one.name: 1000 * one.ms / one.calls for one in operators if one.calls >= _OFTEN}
    short = [one for one in operators if each_us.get(one.name, _SHORT_US) < _SHORT_US]
    if short:
        most = max(short, key=lambda one: one.calls)
        told.append(
            f"batch these: {most.name}, {most.calls:,.0f} times {per}, {each_us[most.name]:.1f} us each"
        )
    return told


def _short(name: str) -> str:
    """Without the types and arguments that C++ puts into a kernel's name."""
    plain = (
        name.replace("(anonymous namespace)::", "")
        .partition("<")[0]
        .partition("(")[0]
        .removeprefix("void ")
        .strip()
        or name
    )
    return plain if len(plain) <= _LONGEST_NAME else plain[: _LONGEST_NAME - 3] + "..."


def _notes(columns: Columns, found: Timeline) -> tuple[str, ...]:
    notes = []
    if not len(found.device_rows):
        notes.append("the trace has no kernel of a GPU: this is what the host did")
    if found.marked.clock == "device":
        behind = found.marked.behind_ns / 1e6
        notes.append(
            f"the host runs ahead of the device (by {behind:.3g} ms at the last mark): steps are timed on "
            "the device, and its work belongs to the step that launched it"
        )
    if found.lost_graphs:
        notes.append(
            f"{_INCOMPLETE} ({found.lost_graphs} launches without any), so how busy the device was is unknown"
        )
    if not columns.ended:
        notes.append("the file is cut off: what is left of it was read")
    if columns.skipped:
        place, reason = columns.first_skip or (0, "")
        notes.append(f"{columns.skipped} events could not be read; the first is at byte {place}: {reason}")
    missing = int((columns.length < 0).sum())
    if missing:
        notes.append(f"{missing} events have no length, and count nowhere")
    if len(found.device_rows) and not (columns.category == CODES["cuda_runtime"]).any():
        notes.append("the trace has no calls of the CUDA runtime: why the device was idle cannot be told")
    return (*notes, *columns.notes)
