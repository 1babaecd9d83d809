"""The page of `fit`: every section or the reason why not, names that stay names, bars that tell the truth."""

import dataclasses
import re

import pytest

from flatout.records.fit import Fit, FitOption, MemoryAt, MemoryHolder, MemoryParts, MemoryStack
from flatout.report.fit_page import fit_page, gpu_rows, parts_picture
from flatout.report.memory_timeline import memory_timeline
from tests.pages import Page, insist_on_one_file, parsed
from tests.unit.report.test_profile_page import EVIL, HUGE

GIB = 1 << 30
BLOCK = (
    "train.py:136 in <module>",
    "train.py:121 in main",
    "model.py:90 in GPT.forward",
    "model.py:66 in Block.forward",
)


def option(gpu: str, memory: int, *, fits: bool | None = True, needed: int = 40, **more: object) -> FitOption:
    return FitOption(
        gpu=gpu,
        memory_bytes=memory * GIB,
        fits=fits,
        is_tight=needed > memory,
        peak_bytes=needed * GIB,
        **{"usd_per_hour": 0.5, **more},  # type: ignore[arg-type]
    )


FIT = Fit(
    run="20261116-050714-fit-ef5e8f",
    command=("python", "train.py", "--size", "1.3b"),
    peak_bytes=33 * GIB,
    reserved_bytes=39 * GIB,
    parts=MemoryParts(
        parameters=5 * GIB, gradients=5 * GIB, optimizer=10 * GIB, activations=13 * GIB, context=GIB // 2
    ),
    error_bar=0.02,
    updates=3,
    where="train.py:122 in main",
    options=(
        option("rtx4090", 24, fits=False),
        option("a100-40gb-sxm", 39),
        option("l40s", 44, usd_per_hour=None),
        option("h100-80gb-sxm", 40, fits=None),
    ),
    holders=(
        MemoryHolder(where="", category="optimizer", operator="zeros_like", size_bytes=10 * GIB, count=584),
        MemoryHolder(
            where="model.py:66 in Block.forward",
            category="activations",
            operator="gelu",
            size_bytes=8 * GIB,
            count=24,
        ),
    ),
    strategies=(
        option("rtx4090", 24, needed=38, fits=False, strategy="bf16"),
        option(
            "rtx4090",
            24,
            needed=20,
            strategy="bf16, 8-bit optimizer",
            changes_training=True,
            predicted_slowdown=1.36,
            how="flatout tune --goal memory",
        ),
        option("rtx4090", 24, needed=25, strategy="optimizer states on the host", predicted_slowdown=1.4),
    ),
    least_bytes=20 * GIB,
    least_by="bf16, 8-bit optimizer",
    timeline=tuple(
        MemoryAt(
            event=10 * number,
            allocated_bytes=(20 + 13 * (number % 5) // 4) * GIB,
            parts={
                "parameters": 5 * GIB,
                "gradients": 5 * GIB,
                "optimizer": 10 * GIB,
                "activations": 13 * (number % 5) // 4 * GIB,
            },
        )
        for number in range(16)
    ),
    update_events=(55, 105, 155),
    stacks=(
        MemoryStack(
            frames=("train.py:136 in <module>", "train.py:125 in main"),
            category="optimizer",
            operator="zeros_like",
            size_bytes=10 * GIB,
            count=584,
        ),
        MemoryStack(frames=BLOCK, category="activations", operator="gelu", size_bytes=8 * GIB, count=24),
        MemoryStack(frames=BLOCK, category="activations", operator="addmm", size_bytes=5 * GIB, count=24),
        MemoryStack(frames=(), category="parameters", size_bytes=5 * GIB, count=292),
    ),
    report="report.html",
    took_s=8.2,
    notes=("masked_select at train.py:3 gives as much as its values say: counted at its largest",),
)


def page(fit: Fit) -> Page:
    return parsed(fit_page(fit))


def test_it_is_one_file_without_script_or_network() -> None:
    insist_on_one_file(fit_page(FIT))


def test_the_sections_come_in_the_order_in_which_they_matter() -> None:
    html = fit_page(FIT)
    assert re.findall(r"<h1>(.*?)</h1>", html) == ["33.0 GiB at the peak, 39.0 GiB reserved, within 2.0 %"]
    assert re.findall(r"<h2>(.*?)</h2>", html) == [
        "Does it fit?",
        "What makes it fit into rtx4090",
        "Memory over the updates",
        "Which calls hold it at the peak",
        "Lines that hold most",
        "Notes",
    ]
    found = parsed(html)
    assert "python train.py --size 1.3b" in found.text
    assert "The peak is reached at train.py:122 in main" in found.text
    assert "counted at its largest" in found.text


def test_each_gpu_has_its_verdict_and_the_ways_that_fit_their_cost() -> None:
    found = page(FIT)
    assert found.row("rtx4090")[2:] == ["24.0 GiB", "40.0 GiB", "does not fit", "0.50 USD"]
    assert found.row("a100-40gb-sxm")[4] == "fits, barely"
    assert found.row("l40s")[4:] == ["fits", ""]
    assert found.row("h100-80gb-sxm")[4] == "too close to say"
    assert [row[0] for row in found.rows if row[0].startswith(("bf16", "optimizer states"))] == [
        "bf16, 8-bit optimizerchanges the training",
        "optimizer states on the hostbarely",
    ]
    assert found.row("bf16, 8-bit optimizerchanges the training")[1:] == [
        "20.0 GiB",
        "1.36x",
        "0.50 USD",
        "flatout tune --goal memory",
    ]


def test_bars_of_gpus_are_on_one_scale() -> None:
    small, *_, large = gpu_rows((option("small", 24, fits=False), option("large", 80)))
    assert (small.needed, small.has) == (50.0, 30.0)
    assert (large.needed, large.has) == (50.0, 100.0)
    assert gpu_rows(()) == []


def test_where_nothing_fits_the_least_is_told() -> None:
    found = page(dataclasses.replace(FIT, strategies=FIT.strategies[:1]))
    assert (
        "Nothing that was tried here: the least on one GPU is 20.0 GiB (bf16, 8-bit optimizer)." in found.text
    )


def test_what_holds_the_memory_sums_to_what_the_gpu_must_have() -> None:
    picture = parts_picture(FIT)
    assert picture is not None
    [bar] = picture.bars
    assert bar.figure == "39.5 GiB"
    assert [part.figure for part in picture.keys] == [
        "5.0 GiB",
        "5.0 GiB",
        "10.0 GiB",
        "13.0 GiB",
        "6.0 GiB",
        "512 MiB",
    ]
    assert sum(piece.width for piece in bar.pieces) == pytest.approx(100, abs=0.01)
    found = page(FIT)
    assert found.row("activations")[1] == "13.0 GiB"
    assert found.row("reserved by torch, not in use at the peak")[1] == "6.0 GiB"


def test_the_timeline_stacks_who_holds_it_and_marks_the_peak_and_the_updates() -> None:
    chart = memory_timeline(FIT.timeline, FIT.update_events)
    assert chart is not None
    # What holds nothing has no area; what stays lies below what comes and goes.
    assert [shape.kind for shape in chart.areas] == ["parameters", "optimizer", "gradients", "activations"]
    assert [tick.label for tick in chart.x_ticks] == ["update 1", "update 2", "update 3"]
    assert chart.x_ticks[-1].at == chart.area["right"]
    [peak] = chart.dots
    assert peak.label == "33.0 GiB"
    highest = min(float(point.split(",")[1]) for point in chart.lines[0].points.split())
    assert peak.y == highest
    assert memory_timeline(FIT.timeline[:1], (0,)) is None
    assert memory_timeline([MemoryAt(event=number, allocated_bytes=0) for number in range(3)], ()) is None


def test_of_many_updates_some_are_marked() -> None:
    chart = memory_timeline(FIT.timeline, range(0, 150, 3))
    assert chart is not None
    assert 3 <= len(chart.x_ticks) <= 6


def test_of_a_script_that_put_nothing_on_the_gpu_every_section_says_so() -> None:
    found = page(
        Fit(
            run="r",
            command=("python", "train.py"),
            peak_bytes=0,
            reserved_bytes=0,
            parts=MemoryParts(context=GIB),
            error_bar=0.02,
            updates=1,
            where=None,
            options=(option("t4", 16, needed=1),),
        )
    )
    for words in (
        "the peak is reached in no line of the script",
        "Nothing was asked of the GPU.",
        "Unknown: nothing was noted of it.",
        "None holds any.",
        "over 1 update:",
    ):
        assert words in found.text, words
    assert "None" not in found.text.replace("None holds any", "")


def hostile(text: str) -> Fit:
    """A job in which whoever could name something named it so."""
    stack = dataclasses.replace(
        FIT.stacks[0], frames=(text, f"{text}:3 in {text}"), category=text, operator=text
    )
    return dataclasses.replace(
        FIT,
        command=("python", text),
        where=text,
        options=(option(text, 24, strategy=text), *FIT.options),
        strategies=tuple(
            dataclasses.replace(one, gpu=text, strategy=text, how=text) for one in FIT.strategies
        ),
        least_by=text,
        holders=(MemoryHolder(where=text, category=text, operator=text, size_bytes=GIB, count=1),),
        timeline=tuple(dataclasses.replace(one, parts={text: GIB}) for one in FIT.timeline),
        stacks=(stack, *FIT.stacks),
        notes=(text,),
    )


@pytest.mark.parametrize("text", [EVIL, HUGE, EVIL + HUGE, "", "\ud800"])
def test_names_from_outside_stay_names(text: str) -> None:
    html = fit_page(hostile(text))
    found = parsed(html)
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert not any("alert" in " ".join(attrs) for _, attrs in found.tags)
    assert all(len(attrs.get("class", "")) < 60 for _, attrs in found.tags)
    assert len(html) < 400_000
    html.encode("utf-8", "replace")
