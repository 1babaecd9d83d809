"""Bandwidth-bound or compute-bound: one layer at growing batches crosses from the one into the other."""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial

from flatout.learn.bench import Bench
from flatout.learn.lesson import Lesson, Setting
from flatout.learn.rungs import core_bandwidth
from flatout.learn.saying import paragraphs, rated_rows
from flatout.limits.memory import cpu_cache_bytes, device_cache_bytes
from flatout.records.errors import ChildFailed
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
from flatout.records.rated import Dtype
from flatout.records.words import byte_rate, duration, flop_rate, percent, three_digits

_CPU_WIDTH, _LARGE_CACHE_WIDTH = 4096, 8192
_LARGE_CACHE_BYTES = 48 << 20
_GPU_WIDTHS = (8192, 16384)
_HALF_BYTES = 2
_CPU_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
_CORE_SIDE = 1024
_TURNS = 3
_GPU_ROWS = (1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


@dataclasses.dataclass(frozen=True)
class RowsPoint:
    """A layer called with so many rows at once."""

    rows: int
    seconds: float
    flops: float
    moved_bytes: float

    @property
    def flops_per_s(self) -> float:
        """What was reached."""
        return self.flops / self.seconds

    @property
    def intensity(self) -> float:
        """Operations for each byte that moves."""
        return self.flops / self.moved_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class BoundMeasured:
    """A layer at several batches, an addition, and the two ceilings."""

    width: int
    dtype: Dtype
    points: tuple[RowsPoint, ...]
    addition: RowsPoint
    memory_bytes_per_s: float
    peak_flops_per_s: float


def measure(bench: Bench) -> BoundMeasured:
    """Multiply more and more rows with one large matrix that no cache holds."""
    dtype: Dtype = "fp32" if bench.on_cpu else _half(bench)
    width = _width(bench)
    with bench.torch.inference_mode(), bench.one_core():
        peak, bandwidth = _core_ceilings(bench) if bench.on_cpu else _ceilings(bench, dtype)
        points = tuple(_products(bench, dtype, width))
        addition = _addition(bench, dtype)
    return BoundMeasured(
        width=width,
        dtype=dtype,
        points=points,
        addition=addition,
        # A ceiling is the best that was seen: nothing may stand above its own roof.
        memory_bytes_per_s=max(bandwidth, *(one.moved_bytes / one.seconds for one in (addition, points[0]))),
        peak_flops_per_s=max([peak, *(point.flops_per_s for point in points)]),
    )


def _width(bench: Bench) -> int:
    """Of a matrix well beyond the cache: on a GPU, of at least twice its size."""
    if bench.on_cpu:
        return _LARGE_CACHE_WIDTH if cpu_cache_bytes() > _LARGE_CACHE_BYTES else _CPU_WIDTH
    cache = device_cache_bytes(bench.torch, bench.device)
    return next((one for one in _GPU_WIDTHS if one * one * _HALF_BYTES >= 2 * cache), _GPU_WIDTHS[-1])


def _ceilings(bench: Bench, dtype: Dtype) -> tuple[float, float]:
    """What products and memory reach on the device, as `flatout limits` measures them."""
    peak = bench.matmul_rate(dtype)
    if isinstance(peak, str):
        raise ChildFailed(
            f"no {dtype} product can be measured here: {peak}",
            expected="a torch that multiplies on this device",
            remedy="flatout doctor",
        )
    return peak, bench.memory_bytes_per_s


def _core_ceilings(bench: Bench) -> tuple[float, float]:
    """The same of one core; `flatout limits` measures all of them together."""
    bench.say("what one core can do")
    torch = bench.torch
    left, right, out = (torch.randn(_CORE_SIDE, _CORE_SIDE) for _ in range(3))
    peak = 2.0 * _CORE_SIDE**3 / bench.seconds(lambda: torch.mm(left, right, out=out))
    return peak, core_bandwidth(bench)


def _half(bench: Bench) -> Dtype:
    return "bf16" if not isinstance(bench.matmul_rate("bf16"), str) else "fp16"


def _kind(bench: Bench, dtype: Dtype) -> tuple[object, int]:
    torch = bench.torch
    return {"fp32": (torch.float32, 4), "bf16": (torch.bfloat16, 2), "fp16": (torch.float16, 2)}[dtype]


def _products(bench: Bench, dtype: Dtype, width: int) -> Iterator[RowsPoint]:
    """Sizes take turns: what another program does for a moment then spoils no single one."""
    torch, (kind, size) = bench.torch, _kind(bench, dtype)
    weight = torch.randn(width, width, device=bench.device).to(kind)
    best: dict[int, float] = {}
    for turn in range(_TURNS if bench.on_cpu else 1):
        for rows in _CPU_ROWS if bench.on_cpu else _GPU_ROWS:
            bench.say(f"a layer with {rows} rows" + (", again" if turn else ""))
            left = torch.randn(rows, width, device=bench.device).to(kind)
            out = torch.empty(rows, width, device=bench.device, dtype=kind)
            call: Callable[[], object] = partial(torch.mm, left, weight, out=out)
            taken_s = bench.seconds(call, at_most_s=0.15)
            best[rows] = min(best.get(rows, taken_s), taken_s)
    for rows, taken_s in best.items():
        moved = size * (width * width + 2 * rows * width)
        yield RowsPoint(rows, taken_s, 2.0 * rows * width * width, float(moved))


def _addition(bench: Bench, dtype: Dtype) -> RowsPoint:
    bench.say("an addition")
    torch, (kind, size) = bench.torch, _kind(bench, dtype)
    count = (64 << 20) // size * (1 if bench.on_cpu else 8)
    first, second, out = (torch.ones(count, device=bench.device, dtype=kind) for _ in range(3))
    taken_s = bench.seconds(lambda: torch.add(first, second, out=out))
    return RowsPoint(1, taken_s, float(count), 3.0 * size * count)


def _roof(found: BoundMeasured, intensity: float) -> float:
    return min(found.peak_flops_per_s, intensity * found.memory_bytes_per_s)


def _cheapest(found: BoundMeasured) -> RowsPoint:
    """Where a row costs least."""
    return min(found.points, key=lambda point: point.seconds / point.rows)


def teach(found: BoundMeasured, setting: Setting) -> Taught:
    """Where the ridge is here, and on which side things are."""
    ridge = found.peak_flops_per_s / found.memory_bytes_per_s
    first, cheapest = found.points[0], _cheapest(found)
    gain = first.seconds / (cheapest.seconds / cheapest.rows)
    return Taught(
        id=LESSON.id,
        title=LESSON.title,
        question=LESSON.question,
        answer=f"{_who(setting)} computes {three_digits(ridge)} operations while one byte arrives: "
        "whatever does fewer with each byte waits for memory.",
        pictures=(_rates(found), _times(found)),
        seen=_seen(found, first, cheapest, gain),
        rated=rated_rows(
            "The ridge of other hardware, bf16",
            ("products", "memory", "operations a byte at the ridge"),
            [
                (
                    gpu,
                    (
                        flop_rate(gpu.dense_flops_per_s["bf16"]),
                        byte_rate(gpu.memory_bandwidth_bytes_per_s),
                        three_digits(gpu.dense_flops_per_s["bf16"] / gpu.memory_bandwidth_bytes_per_s),
                    ),
                )
                for gpu in setting.compared
                if "bf16" in gpu.dense_flops_per_s
            ],
        ),
        advice=(
            Advice(
                command="flatout profile train.py",
                why="which share of your step is products, and which is kernels that wait for memory",
            ),
            Advice(command="flatout batch train.py", why="the batch size at which more rows stop being free"),
            Advice(
                command="flatout tune train.py",
                why="fuses what is bandwidth-bound, and computes what is compute-bound in bf16",
            ),
        ),
        figures=(
            LearnFigure(name="peak", value=found.peak_flops_per_s, unit="FLOP/s"),
            LearnFigure(name="memory", value=found.memory_bytes_per_s, unit="bytes/s"),
            LearnFigure(name="ridge", value=ridge, unit="FLOP/byte", origin="computed"),
            LearnFigure(name="rows at which one costs least", value=float(cheapest.rows), unit="number"),
            LearnFigure(name="how much less", value=gain, unit="times", origin="computed"),
            *(
                LearnFigure(name=f"{point.rows} rows", value=point.flops_per_s, unit="FLOP/s")
                for point in found.points
            ),
            LearnFigure(name="addition", value=found.addition.flops_per_s, unit="FLOP/s"),
        ),
    )


_SEEN = """
One layer of {width} x {width} in {dtype}, called with 1 row, reads all its weights ({weights} MB) to use
each once: {one}, at {one_rate}. That is bandwidth-bound: the arithmetic is mostly idle, at {busy} of what
it can do.

{rows} rows take only {times} times as long, because the weights travel once for all of them: a row costs
{gain} times less, at {best_rate}. Where more rows cost as much more time, it is compute-bound: only less
work, or arithmetic in a smaller format, makes it faster.

An addition of two tensors can never cross over: one operation for {bytes_an_addition} bytes. It ran at
{add_rate}, and moved {add_moved}. Activations, norms, dropout and most optimizers are like this. They get
faster by being fused, or by smaller formats, not by more FLOP/s.

So a language model that answers one user makes tokens at the pace of its memory, and a larger batch costs
little until the ridge.
"""


def _seen(found: BoundMeasured, first: RowsPoint, cheapest: RowsPoint, gain: float) -> tuple[str, ...]:
    addition = found.addition
    return paragraphs(
        _SEEN,
        width=found.width,
        dtype=found.dtype,
        weights=three_digits(first.moved_bytes / 1e6),
        one=duration(first.seconds),
        one_rate=flop_rate(first.flops_per_s),
        busy=percent(first.flops_per_s / found.peak_flops_per_s),
        rows=cheapest.rows,
        times=three_digits(cheapest.seconds / first.seconds),
        gain=three_digits(gain),
        best_rate=flop_rate(cheapest.flops_per_s),
        bytes_an_addition=f"{addition.moved_bytes / addition.flops:.0f}",
        add_rate=flop_rate(addition.flops_per_s),
        add_moved=byte_rate(addition.moved_bytes / addition.seconds),
    )


def _who(setting: Setting) -> str:
    return "This GPU" if setting.on_gpu else "One core of this CPU"


def _rates(found: BoundMeasured) -> CurvePicture:
    ridge = found.peak_flops_per_s / found.memory_bytes_per_s
    beyond = [point.rows for point in found.points if point.intensity >= ridge]
    return CurvePicture(
        title=f"What a layer of {found.width} x {found.width} reaches, by how many rows it gets at once",
        x_label="rows in the batch",
        x_unit="number",
        y_label="operations a second",
        y_unit="FLOP/s",
        curves=(
            LearnCurve(name="measured", points=tuple((float(p.rows), p.flops_per_s) for p in found.points)),
            LearnCurve(
                name="roof",
                points=tuple((float(p.rows), _roof(found, p.intensity)) for p in found.points),
                origin="computed",
            ),
        ),
        marks=(CurveMark(x=float(beyond[0]), label="the ridge"),) if beyond else (),
        caption="The roof is what memory bandwidth, then arithmetic, allows; both were measured here.",
    )


def _times(found: BoundMeasured) -> BarPicture:
    return BarPicture(
        title="How long a call takes",
        unit="s",
        bars=tuple(
            LearnBar(
                label=f"{point.rows} row{'s' if point.rows > 1 else ''}",
                value=point.seconds,
                words=f"{duration(point.seconds)}, {duration(point.seconds / point.rows)} a row",
            )
            for point in found.points
        ),
        caption="While memory is the limit, more rows cost little; then they cost in full.",
    )


LESSON = Lesson(
    id="bound",
    title="Bandwidth-bound and compute-bound",
    question="Would a faster processor help, or does it wait for memory?",
    seconds=6,
    record=BoundMeasured,
    measure=measure,
    teach=teach,
)
