"""Memory is a ladder: the closer, the faster and the smaller; the sweep over sizes shows each rung."""

import dataclasses
import statistics

from flatout.learn.bench import Bench
from flatout.learn.lesson import Lesson, Setting
from flatout.learn.rungs import (
    Cache,
    SizePoint,
    caches_of,
    disk_write_bytes_per_s,
    in_order_and_shuffled,
    sweep,
)
from flatout.learn.saying import paragraphs, rated_rows
from flatout.limits.host_link import measure_host_link
from flatout.records.learn import (
    Advice,
    BarPicture,
    CurveMark,
    CurvePicture,
    LearnBar,
    LearnCurve,
    LearnFigure,
    Taught,
)
from flatout.records.words import byte_rate, duration, memory_size, three_digits

_GIB = 1 << 30
# Sizes this many times the last cache are surely not in it.
_WELL_BEYOND = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryMeasured:
    """Rates over sizes, and of what lies further away."""

    points: tuple[SizePoint, ...]
    caches: tuple[Cache, ...]
    in_order_bytes_per_s: float
    shuffled_bytes_per_s: float
    pinned_bytes_per_s: float | None
    pageable_bytes_per_s: float | None
    disk_bytes_per_s: float | None
    disk_folder: str


@dataclasses.dataclass(frozen=True)
class _Rung:
    name: str
    bytes_per_s: float


def measure(bench: Bench) -> MemoryMeasured:
    """Read the same bytes again and again, from a few KiB to far beyond the caches."""
    caches = caches_of(bench)
    with bench.torch.inference_mode():
        points = tuple(sweep(bench, caches))
        bench.say("in order and shuffled")
        in_order, shuffled = in_order_and_shuffled(bench)
        link = _link(bench)
    bench.say("disk")
    disk = disk_write_bytes_per_s(bench.scratch)
    return MemoryMeasured(
        points=points,
        caches=caches,
        in_order_bytes_per_s=in_order,
        shuffled_bytes_per_s=shuffled,
        pinned_bytes_per_s=link.get("h2d_pinned_bytes_per_s"),
        pageable_bytes_per_s=link.get("h2d_pageable_bytes_per_s"),
        disk_bytes_per_s=disk,
        disk_folder=str(bench.scratch.parent),
    )


def _link(bench: Bench) -> dict[str, float]:
    if bench.on_cpu:
        return {}
    names = ("h2d_pinned_bytes_per_s", "h2d_pageable_bytes_per_s")
    kept = {name: getattr(bench.known, name) for name in names} if bench.known is not None else {}
    if kept and all(rate is not None for rate in kept.values()):
        return kept
    bench.say("link to the host")
    return dict(measure_host_link(bench.torch, bench.device, bench.watch))


def teach(found: MemoryMeasured, setting: Setting) -> Taught:
    """The ladder of this machine."""
    rungs = _rungs(found, setting)
    fastest, memory = rungs[0], next(rung for rung in rungs if rung.name == _memory_name(setting))
    times = fastest.bytes_per_s / memory.bytes_per_s
    penalty = found.in_order_bytes_per_s / found.shuffled_bytes_per_s
    return Taught(
        id=LESSON.id,
        title=LESSON.title,
        question=LESSON.question,
        answer=f"Here, {fastest.name} gives {byte_rate(fastest.bytes_per_s)} and {memory.name} "
        f"{byte_rate(memory.bytes_per_s)}: {three_digits(times)} times less.",
        pictures=(_curve(found, setting), _ladder(rungs)),
        seen=_seen(found, setting, rungs, penalty),
        rated=rated_rows(
            "Memory of other hardware",
            ("memory", "bandwidth", "all of it read once"),
            [
                (
                    gpu,
                    (
                        memory_size(gpu.usable_bytes),
                        byte_rate(gpu.memory_bandwidth_bytes_per_s),
                        duration(gpu.usable_bytes / gpu.memory_bandwidth_bytes_per_s),
                    ),
                )
                for gpu in setting.compared
            ],
        ),
        advice=(
            Advice(command="flatout limits", why="the same in full, kept for later, against what is rated"),
            Advice(
                command="flatout profile train.py",
                why="how much of a step goes to kernels that only move memory",
            ),
            Advice(
                command="flatout tune train.py",
                why="compile keeps values in the near rungs instead of writing them out and back",
            ),
        ),
        figures=_figures(found, rungs, penalty),
    )


def _memory_name(setting: Setting) -> str:
    return "the GPU's memory" if setting.on_gpu else "main memory"


def _rungs(found: MemoryMeasured, setting: Setting) -> list[_Rung]:
    rungs, below = [], 0
    for cache in found.caches:
        inside = [p.bytes_per_s for p in found.points if below < p.size_bytes <= cache.size_bytes]
        below = cache.size_bytes
        if inside:
            rungs.append(_Rung(cache.name, max(inside)))
    if not rungs:  # nobody tells how large the caches are: the best is theirs, and the largest sizes memory's
        rungs.append(_Rung("what lies near", max(p.bytes_per_s for p in found.points)))
        below = found.points[-1].size_bytes // (2 * _WELL_BEYOND)
    beyond = [p.bytes_per_s for p in found.points if p.size_bytes >= _WELL_BEYOND * below]
    rungs.append(_Rung(_memory_name(setting), statistics.median(beyond or [found.points[-1].bytes_per_s])))
    for name, rate in (
        ("the host, pinned", found.pinned_bytes_per_s),
        ("the host, pageable", found.pageable_bytes_per_s),
        ("disk, written and synced", found.disk_bytes_per_s),
    ):
        if rate is not None:
            rungs.append(_Rung(name, rate))
    return rungs


def _curve(found: MemoryMeasured, setting: Setting) -> CurvePicture:
    who = "" if setting.on_gpu else ", by one core"
    return CurvePicture(
        title="How fast the same bytes are read again and again",
        x_label="how many bytes",
        x_unit="bytes",
        y_label=f"bytes a second{who}",
        y_unit="bytes/s",
        curves=(
            LearnCurve(name="measured", points=tuple((p.size_bytes, p.bytes_per_s) for p in found.points)),
        ),
        marks=tuple(CurveMark(x=cache.size_bytes, label=f"{cache.name} ends") for cache in found.caches),
        caption="Each cliff is the end of a cache: what no longer fits comes from the next rung.",
    )


def _ladder(rungs: list[_Rung]) -> BarPicture:
    return BarPicture(
        title="The ladder, from near to far",
        unit="bytes/s",
        scale="log",
        bars=tuple(
            LearnBar(
                label=rung.name,
                value=rung.bytes_per_s,
                words=f"{byte_rate(rung.bytes_per_s)}; 1 GiB in {duration(_GIB / rung.bytes_per_s)}",
            )
            for rung in rungs
        ),
        caption="The scale is logarithmic: a bar that is a little shorter is a lot slower.",
    )


_SEEN = """
A processor never computes on memory: it computes on what was fetched into the rung beside it. Small data
stays there; here that is {near}. What does not fit is fetched anew each time, from {name}, at {far}.

Training rarely fits into a cache: each operation on large tensors reads its inputs from far away and writes
its output back there. Two operations made one (fused) travel once instead of twice.

Order matters as well: the same numbers fetched in a shuffled order came {penalty} times more slowly,
because memory is delivered in lines of many bytes, of which then a few are used.
"""
_HOST = """
The host is further away still: {pinned} from pinned memory, {pageable} from pageable. A batch should travel
while the one before is worked on, from pinned memory.
"""
_DISK = """
And a checkpoint of 1 GiB takes {taken} until it is on the disk of {folder}: another process should write
it.
"""


def _seen(found: MemoryMeasured, setting: Setting, rungs: list[_Rung], penalty: float) -> tuple[str, ...]:
    memory = next(rung for rung in rungs if rung.name == _memory_name(setting))
    words = paragraphs(
        _SEEN,
        near=byte_rate(rungs[0].bytes_per_s),
        name=memory.name,
        far=byte_rate(memory.bytes_per_s),
        penalty=three_digits(penalty),
    )
    if found.pinned_bytes_per_s and found.pageable_bytes_per_s:
        pinned, pageable = byte_rate(found.pinned_bytes_per_s), byte_rate(found.pageable_bytes_per_s)
        words += paragraphs(_HOST, pinned=pinned, pageable=pageable)
    if found.disk_bytes_per_s:
        taken = duration(_GIB / found.disk_bytes_per_s)
        words += paragraphs(_DISK, taken=taken, folder=found.disk_folder)
    return words


def _figures(found: MemoryMeasured, rungs: list[_Rung], penalty: float) -> tuple[LearnFigure, ...]:
    return (
        *(LearnFigure(name=rung.name, value=rung.bytes_per_s, unit="bytes/s") for rung in rungs),
        *(
            LearnFigure(name=f"size of {cache.name}", value=float(cache.size_bytes), unit="bytes")
            for cache in found.caches
        ),
        LearnFigure(name="in order", value=found.in_order_bytes_per_s, unit="bytes/s"),
        LearnFigure(name="shuffled", value=found.shuffled_bytes_per_s, unit="bytes/s"),
        LearnFigure(name="in order over shuffled", value=penalty, unit="times", origin="computed"),
    )


LESSON = Lesson(
    id="memory",
    title="The memory ladder",
    question="Why is the same addition sometimes ten times slower? It depends on where its numbers lie.",
    seconds=5,
    record=MemoryMeasured,
    measure=measure,
    teach=teach,
)
