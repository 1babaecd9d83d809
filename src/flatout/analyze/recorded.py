"""What the steps under torch's profiler add to a profile: kernels, the waterfall, waits with their lines."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flatout.analyze.floors import floors, product_shapes
from flatout.analyze.memory_timeline import memory_timeline
from flatout.analyze.profile import Peaks
from flatout.analyze.trace.chunks import NotATrace
from flatout.analyze.typical import typical_mfu
from flatout.records.profile import LineUse, Profile
from flatout.records.session import RANKS_FOLDER
from flatout.records.step import Share, StepTimes
from flatout.records.trace import ModuleUse, SyncPoint, TraceSummary

# On the device; the rest of a step it idles.
_BUSY = ("host_to_device", "matmul", "attention", "memory_bound", "optimizer", "communication", "other_gpu")
_LINES_AT_MOST = 200
# How operators that wait call themselves in a trace, and what they dispatch to.
_WAITING = {
    "aten::_local_scalar_dense": ("aten::_local_scalar_dense", "aten::item", "aten::is_nonzero"),
    "aten::nonzero": ("aten::nonzero",),
    "aten::_to_copy": ("aten::copy_", "aten::to", "aten::_to_copy", "aten::cpu"),
    "aten::masked_select": ("aten::masked_select", "aten::nonzero"),
    "aten::index": ("aten::index", "aten::nonzero"),
    "cuda::synchronize": ("cudaDeviceSynchronize",),
    "cuda::stream_synchronize": ("cudaStreamSynchronize",),
    "cuda::event_synchronize": ("cudaEventSynchronize",),
}
# Of the idle time in a recording, what a timed step has of it: so much where the profiler lengthened
# everything, so much where it lengthened little.
_ALL_LONGER, _HARDLY_LONGER = 0.4, 0.8


def with_recordings(profile: Profile, trial: Path, about: Mapping[str, Any], peaks: Peaks) -> Profile:
    """A profile with its floors, the shapes of its products, and what was recorded."""
    counted = about.get("flops") or {}
    lines = line_uses(counted)
    trace, reason = read_recordings(trial, lines)
    if about.get("trace_reason"):
        reason = f"no step was recorded: {about['trace_reason']}"
    on_gpu = str(about.get("device", "cpu")).startswith("cuda")
    parts = profile.waterfall
    if trace is not None and on_gpu and not trace.kernels:
        # Another profiler holds the counters, or the driver lets nobody read them.
        told = "no kernel was recorded: CUPTI is busy or denied, and this is what the host did"
        trace = dataclasses.replace(trace, notes=(*trace.notes, told))
    if trace is not None and profile.step_ms is not None:
        parts = waterfall(parts, trace, profile.step_ms)
    measured = peaks.limits.measured if peaks.limits is not None else None
    by_dtype = dict(measured.matmul_flops_per_s) if measured is not None else {}
    return dataclasses.replace(
        profile,
        waterfall=parts,
        mfu=dataclasses.replace(profile.mfu, typical=typical_mfu(counted.get("operators") or ())),
        trace=trace,
        floors=floors(
            counted,
            about.get("holds") or {},
            {str(name): value for name, value in by_dtype.items()},
            measured.memory_bytes_per_s if measured is not None else None,
            tf32=on_gpu and bool((about.get("habits") or {}).get("tf32")),
            of_counted=profile.mfu.of_counted,
        ),
        products=product_shapes(counted),
        lines=lines[:_LINES_AT_MOST],
        memory_timeline=memory_timeline(trial, on_gpu=on_gpu),
        unknown={**profile.unknown, "trace": reason},
    )


def recordings(trial: Path, pattern: str = "rank*.pt.trace.json.gz") -> list[Path]:
    """Trace files of a trial, by rank; not those with details."""
    found = (trial / RANKS_FOLDER).glob(f"*/{pattern}")
    special = ("-details", "-step")
    paths = (path for path in found if all(word in pattern or word not in path.name for word in special))
    return sorted(paths, key=lambda path: (path.parent.name, len(path.name), path.name))


def read_recordings(trial: Path, lines: Sequence[LineUse]) -> tuple[TraceSummary | None, str]:
    """What the traces of a trial say, or why there is nothing."""
    paths = recordings(trial)
    if not paths:
        return None, "no step was recorded"
    from flatout.analyze.trace.summary import summarize  # with numpy, which a profile without traces spares

    try:
        summary = summarize(paths)
    except NotATrace as error:
        return None, f"the recording could not be read: {error}"
    syncs = with_lines(summary.syncs, lines)
    return dataclasses.replace(summary, syncs=syncs, modules=_modules(trial)), ""


def _modules(trial: Path) -> tuple[ModuleUse, ...]:
    """Of the first rank: calls of modules are marked where details are recorded."""
    from flatout.analyze.trace.modules import modules_of
    from flatout.analyze.trace.reading import read_trace
    from flatout.analyze.trace.timeline import timeline

    for path in recordings(trial, "rank*-details.pt.trace.json.gz")[:1]:
        with contextlib.suppress(NotATrace):
            return modules_of(timeline(read_trace(path)))
    return ()


def with_lines(syncs: Sequence[SyncPoint], lines: Sequence[LineUse]) -> tuple[SyncPoint, ...]:
    """Waits with the lines that cause them: of several, each has its share by how often it calls."""
    found: list[SyncPoint] = []
    for sync in syncs:
        names = {name for name, shown in _WAITING.items() if {sync.operator, sync.call} & set(shown)}
        if sync.operator:  # what waits inside an operator is called by the runtime's name too
            names = {name for name in names if not name.startswith("cuda::")}
        callers = [line for line in lines if line.operator in names]
        total = sum(line.calls for line in callers)
        if sync.where is not None or not total:
            found.append(sync)
            continue
        for line in callers:
            part = line.calls / total
            found.append(
                dataclasses.replace(
                    sync,
                    where=f"{line.file}:{line.line} in {line.function}",
                    count=sync.count * part,
                    host_ms=sync.host_ms * part,
                    stall_ms=sync.stall_ms * part,
                    unknown={},
                )
            )
    return tuple(sorted(found, key=lambda one: (-one.stall_ms, -one.host_ms)))


def waterfall(taps: Sequence[Share], trace: TraceSummary, step: StepTimes) -> tuple[Share, ...]:
    """The parts of a timed step, with the device's work as the recording shows it.

    Kernels take as long under a profiler as without; the host does not. So what the device idles is what is
    left of the timed step: first what the loop waits for data, by the taps, the rest as in the recording.
    A profiler lengthens gaps between launches with every operator, and what follows a wait for the device
    hardly, where that is the script's own doing: unless it lengthened everything, those stay as recorded.
    """
    recorded = {share.part: share.ms for share in trace.waterfall}
    busy = {part: recorded[part] for part in _BUSY if recorded.get(part)}
    if not busy or not trace.kernels or trace.busy_share is None:
        return tuple(taps)
    scale = min(1.0, step.mean / sum(busy.values()))
    parts = {part: ms * scale for part, ms in busy.items()}
    idle_ms = max(0.0, step.mean - sum(parts.values()))
    waits = next((share.ms for share in taps if share.part == "input_wait"), 0.0)
    parts["input_wait"] = min(idle_ms, waits)
    rest = idle_ms - parts["input_wait"]
    stalls = recorded.get("sync_stall", 0.0)
    others = {part: recorded.get(part, 0.0) for part in ("launch_gap", "unattributed")}
    total = sum(others.values())
    if stalls:
        left = rest / (stalls + total)
        kept = min(1.0, max(0.0, (left - _ALL_LONGER) / (_HARDLY_LONGER - _ALL_LONGER)))
        # Where there was nothing else, all of it follows waits.
        as_recorded = min(rest, stalls) if total else rest
        parts["sync_stall"] = kept * as_recorded + (1 - kept) * stalls * left
        rest -= parts["sync_stall"]
    for part, ms in others.items():
        parts[part] = rest * ms / total if total else (rest if part == "unattributed" else 0.0)
    return tuple(Share(part=part, ms=ms, share=ms / step.mean) for part, ms in parts.items() if ms > 0)


def line_uses(counted: Mapping[str, Any]) -> tuple[LineUse, ...]:
    """Who calls what, the busiest lines first."""
    rows = sorted(counted.get("lines") or (), key=lambda row: -row[4])
    return tuple(
        LineUse(operator=operator, file=file, line=line, function=function, calls=calls)
        for operator, file, line, function, calls in rows
    )
