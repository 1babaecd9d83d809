"""The page of an autopsy: what was asked, who held it, what else was behind it, what would help."""

import dataclasses
import re

import pytest

from flatout.records.autopsy import Autopsy, Holder, OutOfMemory
from flatout.records.fit import FitOption, MemoryStack
from flatout.report.autopsy_page import autopsy_page, device_picture, reasons
from tests.pages import Page, insist_on_one_file, parsed
from tests.unit.report.test_profile_page import EVIL, HUGE

GIB = 1 << 30
MIB = 1 << 20
LINE = "/home/me/train.py:22 in Block.forward"
CALLS = (
    "/home/me/train.py:41 in <module>",
    "/home/me/train.py:35 in main",
    "/home/me/train.py:31 in Model.forward",
    LINE,
)

AUTOPSY = Autopsy(
    run="20261116-101500-run-1a2b3c",
    command=("python", "train.py", "--batch-size", "512"),
    rank=0,
    found=OutOfMemory(
        message="6442450944 bytes were asked for",
        on_gpu=True,
        asked_bytes=6 * GIB,
        device_bytes=140 * GIB,
        free_bytes=2 * GIB,
        allocated_bytes=128 * GIB,
        reserved_bytes=133 * GIB,
        cached_bytes=5 * GIB,
        largest_cached_bytes=2 * GIB,
        parts={"activations": 120 * GIB, "parameters": 3 * GIB, "optimizer": 5 * GIB},
        holders=(
            Holder(category="activations", where=LINE, size_bytes=118 * GIB, count=60),
            Holder(category="optimizer", where="/home/me/train.py:39 in main", size_bytes=5 * GIB, count=64),
            Holder(category="parameters", where="", size_bytes=3 * GIB, count=32),
        ),
        stacks=(
            MemoryStack(frames=CALLS, category="activations", size_bytes=118 * GIB, count=60),
            MemoryStack(frames=CALLS[:2], category="optimizer", size_bytes=5 * GIB, count=64),
            MemoryStack(frames=(), category="parameters", size_bytes=3 * GIB, count=32),
        ),
        where=LINE,
        phase="forward",
        updates=12,
    ),
    others_bytes=5 * GIB,
    fragmented_share=5 / 133,
    growth_bytes_per_step=40.0 * MIB,
    fixes=(
        FitOption(
            gpu="139.4 GiB",
            strategy="half of the blocks computed again",
            memory_bytes=140 * GIB,
            fits=True,
            is_tight=False,
            peak_bytes=98 * GIB,
            predicted_slowdown=7 / 6,
            how="levers of `flatout tune`: block-checkpointing (share=0.5)",
        ),
        FitOption(
            gpu="139.4 GiB",
            strategy="8-bit optimizer",
            memory_bytes=140 * GIB,
            fits=True,
            is_tight=True,
            changes_training=True,
            peak_bytes=141 * GIB,
            predicted_slowdown=1.2,
        ),
    ),
    snapshot=".flatout/runs/a/job/ranks/0-1/out-of-memory.pickle",
    report=".flatout/runs/a/autopsy.html",
    notes=("a note",),
)
# Of which nothing is known but that it happened.
BARE = Autopsy(
    run="r",
    command=("python", "train.py"),
    rank=3,
    found=OutOfMemory(message="DefaultCPUAllocator: can't allocate memory", on_gpu=False),
)


def page(autopsy: Autopsy) -> Page:
    return parsed(autopsy_page(autopsy))


def test_it_is_one_file_without_script_or_network() -> None:
    insist_on_one_file(autopsy_page(AUTOPSY))


def test_the_sections_come_in_the_order_in_which_they_matter() -> None:
    html = autopsy_page(AUTOPSY)
    assert re.findall(r"<h1>(.*?)</h1>", html) == [
        "Out of memory: 6.0 GiB more was asked for after 12 updates, in the forward pass"
    ]
    assert re.findall(r"<h2>(.*?)</h2>", html) == [
        "What held the memory",
        "What else could be behind it",
        "What would make it fit",
        "Which calls held it",
        "Lines that held most",
        "Notes",
    ]
    found = parsed(html)
    assert f"The script was at {LINE}" in found.text
    assert "out-of-memory.pickle" in found.text
    assert "a note" in found.text


def test_the_devices_memory_is_told_apart_to_the_last() -> None:
    picture = device_picture(AUTOPSY)
    assert picture is not None
    assert [(part.kind, part.figure) for part in picture.keys] == [
        ("activations", "120.0 GiB"),
        ("optimizer", "5.0 GiB"),
        ("parameters", "3.0 GiB"),
        ("spare", "5.0 GiB"),
        ("others", "5.0 GiB"),
        ("free", "2.0 GiB"),
    ]
    assert sum(piece.width for piece in picture.bars[0].pieces) == pytest.approx(100, abs=0.01)


def test_what_else_could_be_behind_it() -> None:
    told = dict(reasons(AUTOPSY))
    assert told["fragmentation"] == (
        "3.8 % of what is reserved is free in pieces too small; the largest free piece is 2.0 GiB"
    )
    assert told["other processes and the driver"] == "5.0 GiB"
    assert told["trend"] == "it grew by 40 MiB a step before: something is kept from step to step"
    calm = dataclasses.replace(
        AUTOPSY, fragmented_share=0.0, others_bytes=None, growth_bytes_per_step=0.0, unknown={}
    )
    assert [text for _, text in reasons(calm)] == [
        "not the reason; the largest free piece is 2.0 GiB",
        "not known",
        "it did not grow from step to step",
    ]
    unknown = dataclasses.replace(AUTOPSY, growth_bytes_per_step=None, unknown={})
    assert reasons(unknown)[2][1] == "too few steps, or nobody could tell"


def test_fixes_come_with_what_they_need_and_cost() -> None:
    found = page(AUTOPSY)
    assert found.row("half of the blocks computed again")[1:3] == ["98.0 GiB", "1.17x"]
    assert found.row("8-bit optimizerchanges the trainingbarely")[1] == "141.0 GiB"


def test_lines_and_calls_that_held_it() -> None:
    found = page(AUTOPSY)
    assert found.row(LINE)[1:] == ["activations", "60", "118.0 GiB"]
    assert not any(row[0] == "" for row in found.rows if len(row) == 4)
    titles = [text for text in found.texts if text.startswith(f"{LINE}: 118.0 GiB")]
    assert titles == [f"{LINE}: 118.0 GiB, 92 %, 60 x"]


def test_of_a_job_that_said_little_the_page_says_so() -> None:
    found = page(BARE)
    for words in (
        "Out of memory: more was asked for before the first update",
        "rank 3",
        "can't allocate memory",
        "Unknown: the job ended before its device could be asked",
        "Nothing was found.",
        "Unknown: nothing was noted of it.",
    ):
        assert words in found.text, words
    assert "None" not in found.text


def hostile(text: str) -> Autopsy:
    """A job in which whoever could name something named it so."""
    noted = dataclasses.replace(
        AUTOPSY.found,
        message=text,
        parts={text: GIB, "activations": GIB},
        holders=(Holder(category=text, where=text, size_bytes=GIB, count=1),),
        stacks=(MemoryStack(frames=(text, text), category=text, size_bytes=GIB, count=1),),
        where=text,
        phase=text,
    )
    return dataclasses.replace(
        AUTOPSY,
        command=("python", text),
        found=noted,
        fixes=tuple(dataclasses.replace(one, strategy=text, how=text) for one in AUTOPSY.fixes),
        snapshot=text,
        notes=(text,),
    )


@pytest.mark.parametrize("text", [EVIL, HUGE, EVIL + HUGE, "", "\ud800"])
@pytest.mark.parametrize("on_gpu", [True, False])
def test_names_from_outside_stay_names(text: str, on_gpu: bool) -> None:
    autopsy = hostile(text)
    if not on_gpu:
        autopsy = dataclasses.replace(autopsy, found=dataclasses.replace(autopsy.found, device_bytes=None))
    html = autopsy_page(autopsy)
    found = parsed(html)
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert not any("alert" in " ".join(attrs) for _, attrs in found.tags)
    assert all(len(attrs.get("class", "")) < 60 for _, attrs in found.tags)
    assert len(html) < 400_000
    html.encode("utf-8", "replace")
