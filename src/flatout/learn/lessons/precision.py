"""What 32, 16 and 8 bits can hold, shown with real numbers, and how fast products in each are here."""

import dataclasses
from typing import Any

from flatout.learn.bench import Bench
from flatout.learn.lesson import Lesson, Setting
from flatout.learn.saying import paragraphs, rated_rows, sentence
from flatout.records.learn import Advice, BarPicture, LearnBar, LearnFigure, TablePicture, Taught
from flatout.records.rated import Dtype
from flatout.records.words import flop_rate, three_digits

_UPDATE, _UPDATES = 1e-3, 1000
_LARGE, _SMALL = 70_000.0, 1e-8
_SIDE = 256
_TORCH_NAMES: dict[Dtype, str] = {
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp8": "float8_e4m3fn",
}
_RATED: tuple[Dtype, ...] = ("fp32", "tf32", "bf16", "fp8")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
    """What became of some numbers in one format. `None` is what does not fit (infinite, or not a number)."""

    dtype: Dtype
    bits: int
    largest: float
    # The step from 1 to the next number.
    step_at_one: float
    smallest_normal: float
    # 1 + 0.001, a thousand times; None where torch cannot add in this format.
    sum_of_updates: float | None
    large: float | None
    small: float | None
    # Of a product of random matrices, against float64.
    product_error: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrecisionMeasured:
    """Formats, and how fast products in them are; a reason where there are none."""

    formats: tuple[Format, ...]
    rates: dict[Dtype, float]
    refused: dict[Dtype, str]


def measure(bench: Bench) -> PrecisionMeasured:
    """Put the same numbers into each format and look at what comes out."""
    dtypes: tuple[Dtype, ...] = (
        ("fp32", "bf16", "fp16") if bench.on_cpu else ("fp32", "tf32", "bf16", "fp16", "fp8")
    )
    found = {dtype: bench.matmul_rate(dtype) for dtype in dtypes}
    bench.say("what each format holds")
    formats = [
        _format(bench.torch, dtype) for dtype, name in _TORCH_NAMES.items() if hasattr(bench.torch, name)
    ]
    return PrecisionMeasured(
        formats=tuple(formats),
        rates={dtype: rate for dtype, rate in found.items() if not isinstance(rate, str)},
        refused={dtype: rate for dtype, rate in found.items() if isinstance(rate, str)},
    )


def _format(torch: Any, dtype: Dtype) -> Format:
    """On the CPU: a format holds the same everywhere."""
    kind = getattr(torch, _TORCH_NAMES[dtype])
    info = torch.finfo(kind)
    return Format(
        dtype=dtype,
        bits=info.bits,
        largest=info.max,
        step_at_one=info.eps,
        smallest_normal=info.smallest_normal,
        sum_of_updates=_summed(torch, kind),
        large=_finite(float(torch.tensor(_LARGE).to(kind).float())),
        small=float(torch.tensor(_SMALL).to(kind).float()),
        product_error=_error(torch, kind),
    )


def _summed(torch: Any, kind: Any) -> float | None:
    try:
        weight, update = torch.ones((), dtype=kind), torch.tensor(_UPDATE).to(kind)
        for _ in range(_UPDATES):
            weight = weight + update
    except (RuntimeError, NotImplementedError):
        return None  # fp8 is for storing and multiplying alone
    return float(weight)


def _error(torch: Any, kind: Any) -> float | None:
    torch.manual_seed(0)
    left, right = torch.randn(_SIDE, _SIDE), torch.randn(_SIDE, _SIDE)
    exact = left.double() @ right.double()
    # Rounded to the format, then multiplied exactly: what the format itself loses, on any hardware.
    rounded = left.to(kind).double() @ right.to(kind).double()
    return float((rounded - exact).norm() / exact.norm()) or None


def _finite(value: float) -> float | None:
    return value if value - value == 0 else None


def teach(found: PrecisionMeasured, setting: Setting) -> Taught:
    """What each format is good for here."""
    by_dtype = {one.dtype: one for one in found.formats}
    fp32, bf16 = found.rates.get("fp32"), found.rates.get("bf16")
    times = bf16 / fp32 if fp32 and bf16 else None
    faster = (
        f"products in bf16 are {three_digits(times)} times as fast as in fp32 on {setting.here}"
        if times
        else f"products in bf16 cannot be compared on {setting.here}"
    )
    return Taught(
        id=LESSON.id,
        title=LESSON.title,
        question=LESSON.question,
        answer=sentence(
            "{faster}; but 1 + 0.001, a thousand times, is {summed} in bf16 instead of 2.",
            faster=faster[0].upper() + faster[1:],
            summed=_number(by_dtype["bf16"].sum_of_updates),
        ),
        pictures=(_holds(found), _speeds(found)),
        seen=_seen(by_dtype, times),
        rated=rated_rows(
            "Products of other hardware",
            _RATED,
            [
                (
                    gpu,
                    tuple(
                        flop_rate(gpu.dense_flops_per_s[dtype]) if dtype in gpu.dense_flops_per_s else ""
                        for dtype in _RATED
                    ),
                )
                for gpu in setting.compared
            ],
        ),
        advice=(
            Advice(
                command="flatout tune train.py",
                why="tries TF32 and bf16 autocast on your job, and proves that it learns the same",
            ),
            Advice(
                command="flatout tune --allow fp16 train.py",
                why="fp16 with loss scaling, for cards without bf16: it has to be asked for",
            ),
            Advice(
                command="flatout run --on-nan skip train.py",
                why="updates that are not finite are left out, and told of",
            ),
        ),
        figures=_figures(found),
        notes=tuple(f"{dtype} products: not measured ({reason})" for dtype, reason in found.refused.items()),
    )


_SEEN = """
bf16 keeps fp32's range and gives up digits: after 1 comes {next}. An update of 0.001 is less than half of
that step, so it is rounded away, each time. That is why autocast keeps the weights in fp32 and only
multiplies in bf16: the small updates add up where there are digits for them.

fp16 has more digits and less range: 70,000 is infinite, and 1e-8, an ordinary gradient, became {small}. So
fp16 needs loss scaling, and bf16 does not.

fp8 is for the inputs of products alone, with a scale beside each tensor; sums stay in fp32.
"""
_SLOWER = """
Here bf16 is slower than fp32 ({times} times as fast): this processor has no units for it. What is good
advice on one machine costs time on another; that is why it is measured.
"""
_FASTER = """
Products in bf16 run {times} times as fast as in fp32 here, and half the bytes move. Whether a job becomes
that much faster depends on how much of it is products: flatout learn bound.
"""


def _seen(by_dtype: dict[Dtype, Format], times: float | None) -> tuple[str, ...]:
    words = paragraphs(
        _SEEN, next=f"{1 + by_dtype['bf16'].step_at_one:g}", small=_number(by_dtype["fp16"].small)
    )
    if times is not None:
        words += paragraphs(_SLOWER if times < 1 else _FASTER, times=three_digits(times))
    return words


def _number(value: float | None) -> str:
    if value is None:
        return "infinite"
    return f"{value:.4g}"


def _holds(found: PrecisionMeasured) -> TablePicture:
    return TablePicture(
        title="The same numbers in each format",
        header=(
            "format",
            "bits",
            "largest",
            "after 1 comes",
            "1 + 0.001, 1000 times",
            "70,000",
            "1e-8",
            "error of a product",
        ),
        rows=tuple(
            (
                one.dtype,
                str(one.bits),
                f"{one.largest:.3g}",
                f"{1 + one.step_at_one:.8g}",
                "cannot add" if one.sum_of_updates is None else _number(one.sum_of_updates),
                _number(one.large),
                _number(one.small),
                "0" if one.product_error is None else f"{one.product_error:.1e}",
            )
            for one in found.formats
        ),
        caption="The error: random matrices rounded to the format and multiplied exactly, against float64.",
    )


def _speeds(found: PrecisionMeasured) -> BarPicture:
    return BarPicture(
        title="How fast large products are here",
        unit="FLOP/s",
        bars=tuple(LearnBar(label=dtype, value=rate) for dtype, rate in found.rates.items()),
    )


def _figures(found: PrecisionMeasured) -> tuple[LearnFigure, ...]:
    figures = [
        LearnFigure(name=f"{dtype} products", value=rate, unit="FLOP/s")
        for dtype, rate in found.rates.items()
    ]
    figures += [
        LearnFigure(name=f"{dtype} products", value=None, unit="FLOP/s", note=reason)
        for dtype, reason in found.refused.items()
    ]
    for one in found.formats:
        figures.append(LearnFigure(name=f"{one.dtype}, step at 1", value=one.step_at_one, unit="number"))
        figures.append(
            LearnFigure(
                name=f"{one.dtype}, 1 + 0.001, 1000 times",
                value=one.sum_of_updates,
                unit="number",
                note="" if one.sum_of_updates is not None else "torch does not add in this format",
            )
        )
    return tuple(figures)


LESSON = Lesson(
    id="precision",
    title="What 16 bits can hold",
    question="bf16, fp16, fp32: what does each lose, and what does it buy here?",
    seconds=5,
    record=PrecisionMeasured,
    measure=measure,
    teach=teach,
)
