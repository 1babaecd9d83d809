"""The page of `profile`, and that of `trace`: every section or the reason why not, and names stay names."""

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.records.finding import Finding, Place
from flatout.records.profile import (
    DeviceUse,
    Floors,
    LoaderSweep,
    LoaderUse,
    MemoryPoint,
    MemoryUse,
    Mfu,
    ProductShape,
    Profile,
    SweepRow,
)
from flatout.records.ranks import RankUse
from flatout.records.step import Share
from flatout.records.trace import CounterUse, KernelUse, OperatorUse, RankTrace, SyncPoint, TraceSummary
from flatout.records.trial import Shield
from flatout.report.figures import calls
from flatout.report.loss_chart import loss_chart
from flatout.report.memory_picture import memory_chart, memory_picture
from flatout.report.profile_page import headline, profile_page
from flatout.report.source_lines import lines_around
from flatout.report.stacks import Part, pieces
from flatout.report.step_picture import step_picture
from flatout.report.trace_page import trace_page
from tests.pages import Page, insist_on_one_file, parsed
from tests.profiles import GIB, profile, recorded, recorded_trace
from tests.unit.report.test_tuning_page import TUNING

EVIL = 'a</title><script>alert(1)</script>"onload=x\x1b[2J\u202e{{7*7}}'
HUGE = "x" * 10_000


def page(found: Profile, **more: Any) -> Page:
    return parsed(profile_page(found, **more))


def nothing() -> Profile:
    """A job of which next to nothing is known."""
    return profile(
        step_ms=None,
        device=None,
        device_name=None,
        samples_per_s=None,
        tokens_per_s=None,
        waterfall=(),
        host=(),
        device_parts=(),
        evaluation_ms=None,
        mfu=Mfu(of_rated=None, of_measured=None, peak_dtype=None, flops_per_step=None, reason="it ended"),
        memory=MemoryUse(),
        loaders=(),
        device_use=DeviceUse(samples=0),
        losses=(),
        ranks=(),
        parameters=None,
        optimizers=(),
        roots=(),
        updates=1,
        unknown={"trace": "no step was recorded"},
    )


# The whole --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("html", [profile_page(recorded()), trace_page(recorded_trace())])
def test_it_is_one_file_without_script_or_network(html: str) -> None:
    insist_on_one_file(html)


def test_the_headline_says_it_all_in_one_sentence() -> None:
    said = headline(recorded())
    assert said == (
        "GPT on NVIDIA H200: 22.8 ms a step, 2,795 samples/s, MFU 4.2 %; at the device's limits 9.10 ms "
        "(2.51x faster), ideally fused 4.00 ms (5.70x)"
    )
    html = profile_page(recorded())
    assert re.findall(r"<h1.*?>(.*?)</h1>", html) == [said.replace("'", "&#39;")]
    assert "python train.py" in page(recorded()).text
    assert "the median of 198 steps: ± 0.12 ms; 95 % under 24.1 ms; 357,800 tokens/s" in page(recorded()).text


def test_the_sections_come_in_the_order_in_which_they_matter() -> None:
    html = profile_page(recorded(ranks=ranks(2)))
    assert re.findall(r"<h2>(.*?)</h2>", html) == [
        "Where the time goes",
        "What holds it up",
        "Kernels",
        "Operators",
        "Where the host waits",
        "Shapes that miss tensor cores",
        "Memory",
        "Ranks",
        "Loss",
        "The device while the steps ran",
        "The loader",
        "Notes",
    ]


def test_of_a_job_of_which_little_is_known_every_section_says_why() -> None:
    found = page(nothing())
    for words in (
        "The job on an unknown device: 1 updates, too few for a step time",
        "MFU: unknown (it ended)",
        "Too few steps to tell.",
        "Nothing that Flatout knows of.",
        "Unknown: no step was recorded.",
        "Unknown: the shapes of products were not seen.",
        "Unknown: the job does not train on a GPU.",
        "Not recorded.",
        "Unknown: no sample of a device was taken.",
        "The script uses no DataLoader.",
    ):
        assert words in found.text, words
    assert "None" not in found.text
    assert "Loss" not in found.text
    assert "Ranks" not in found.text


def ranks(number: int) -> tuple[RankUse, ...]:
    return tuple(
        RankUse(rank=n, pid=n, device=f"cuda:{n}", step_ms=20.0 + n, updates=9) for n in range(number)
    )


# The waterfall ----------------------------------------------------------------------------------------------


def test_the_bar_is_as_long_as_its_parts_and_the_floors_stand_on_the_same_scale() -> None:
    picture = step_picture(recorded())
    assert picture is not None
    main, as_written, fused = picture.bars
    assert main.pieces[0].width == pytest.approx(100 * 7.6 / 22.9, abs=0.01)
    assert sum(piece.width for piece in main.pieces) == pytest.approx(100, abs=0.05)
    assert as_written.pieces[0].width == pytest.approx(100 * 9.1 / 22.9, abs=0.01)
    assert fused.pieces[0].width == pytest.approx(100 * 4.0 / 22.9, abs=0.01)
    assert as_written.figure == "9.10 ms (2.51x faster)"
    found = page(recorded())
    assert found.row("matrix products") == ["matrix products", "7.60 ms", "33 %", "products and convolutions"]
    # Work first, then what the device idles for.
    assert [key.kind for key in picture.keys][:3] == ["matmul", "attention", "memory_bound"]


def test_a_floor_beyond_the_step_makes_the_scale_longer_and_promises_nothing() -> None:
    picture = step_picture(recorded(floors=Floors(as_written_ms=45.8, fused_ms=22.8)))
    assert picture is not None
    assert sum(piece.width for piece in picture.bars[0].pieces) == pytest.approx(50, abs=0.05)
    assert picture.bars[1].figure == "45.8 ms (where it is)"


def test_unknown_floors_have_their_reason_in_words() -> None:
    reason = "the device's memory bandwidth is not known: flatout limits"
    unknown = Floors(unknown={"as_written_ms": reason, "fused_ms": reason})
    found = page(recorded(floors=unknown))
    assert f"How fast it could be is unknown: {reason}." in found.text
    assert headline(recorded(floors=unknown)).endswith("; how fast it could be is unknown")
    assert len(found.classed("rect", "p-floor")) == 0


def test_a_tuning_of_the_job_stands_beside_its_floors() -> None:
    found = page(recorded(), tuning=TUNING)
    assert f"Tuned since: {TUNING.summary}" in found.text
    assert "with the plan of the tuning 18.0 ms (1.27x faster)" in found.text
    assert len(found.classed("rect", "p-plan")) == 1


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=12),
    whole=st.floats(allow_nan=False, allow_infinity=True),
)
def test_pieces_stay_inside_their_bar_whatever_was_measured(sizes: list[float], whole: float) -> None:
    found = pieces([Part("matmul", "a", size, "") for size in sizes], whole)
    for piece in found:
        assert 0 <= piece.start <= 100
        assert 0 <= piece.width <= 100
        assert piece.start + piece.width <= 100.01


# Findings ---------------------------------------------------------------------------------------------------


def test_a_finding_is_told_with_its_evidence_arithmetic_fix_and_source(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("one\ntwo\n\tif loss.item() < 1:\n\t\tpass\nfive\nsix\n")
    finding = dataclasses.replace(recorded().findings[1], where=(Place(file=str(script), line=3),))
    html = profile_page(recorded(findings=(finding,)))
    found = parsed(html)
    for words in (
        "medium",
        "F201 the host waits for the device",
        "up to 1.14x",
        "aten::item waits once a step",
        "1.14x is a prediction: 1 / (1 - 0.127 + 0.127 / 20) = 1.14",
        "Fix: log every 50 steps",
        f"{script}:3",
        "flatout explain F201",
    ):
        assert words in found.text, words
    assert re.findall(r'<mark class="meant"><span class="at">3</span>(.*?)</mark>', html) == [
        "    if loss.item() &lt; 1:"
    ]
    assert re.findall(r'<span class="at">(\d)</span>', html) == ["1", "2", "3", "4", "5"]


def test_what_is_not_predicted_says_why() -> None:
    assert "What it gives is not predicted: what it costs is not a share of the step" in page(recorded()).text


def test_lines_at_the_ends_of_a_file_have_fewer_neighbours(tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    script.write_bytes(b"\xef\xbb\xbfa\r\nb\x0cb\rc\nd")
    assert [line.text for line in lines_around(Place(file=str(script), line=1))] == ["a", "b b", "c"]
    assert [line.number for line in lines_around(Place(file=str(script), line=4))] == [2, 3, 4]
    for outside in (0, -1, 5):
        assert lines_around(Place(file=str(script), line=outside)) == []


def test_files_that_are_no_source_are_not_read(tmp_path: Path) -> None:
    large = tmp_path / "large.py"
    large.write_text("x\n" * 1_000_001)
    names = [
        str(large),
        str(tmp_path),
        str(tmp_path / "gone.py"),
        "/dev/zero",
        "/proc/self/status",
        "a\0b",
        "",
    ]
    for name in names:
        assert lines_around(Place(file=name, line=1)) == [], name


def test_source_is_text_and_nothing_else(tmp_path: Path) -> None:
    script = tmp_path / "evil.py"
    script.write_text(f"a\n{EVIL} {HUGE}\n\udc80b".encode("utf-8", "surrogateescape").decode("latin-1"))
    finding = dataclasses.replace(recorded().findings[0], where=(Place(file=str(script), line=2),))
    html = profile_page(recorded(findings=(finding,)))
    assert "<script" not in html
    assert "\x1b" not in html
    assert HUGE not in html
    parsed(html)


# Kernels, operators, waits ----------------------------------------------------------------------------------


def test_kernels_operators_and_waits_have_their_figures() -> None:
    found = page(recorded())
    assert found.row("ampere_sgemm_128x64_nn")[1:] == ["3", "3.20 ms", "1.07 ms", "19 %", "matmul", "no"]
    assert found.rows[[row[0] for row in found.rows].index("kernel") + 1][-1] == "yes"
    assert found.row("aten::mm") == ["aten::mm", "73", "5.10 ms", "30 %"]
    assert found.row("cudaStreamSynchronize in aten::item") == [
        "cudaStreamSynchronize in aten::item",
        "/home/ada/gpt/train.py:88 in train",
        "1",
        "14.2 ms",
        "2.90 ms",
    ]
    assert "Where it is unknown: the trace has no Python stacks" in found.text
    assert "58 % of the time is on tensor cores" in found.text


def test_the_rest_of_many_kernels_is_folded_away() -> None:
    html = profile_page(recorded())
    assert "<summary>2 more</summary>" in html
    few = recorded_trace(kernels=recorded_trace().kernels[:10])
    assert "more</summary>" not in profile_page(recorded(trace=few))


def test_a_trace_without_a_gpu_says_so() -> None:
    host = recorded_trace(
        kernels=(), syncs=(), busy_share=None, tensor_core_share=None, kernels_per_step=None
    )
    found = page(recorded(trace=host))
    assert "No kernel of a GPU was recorded." in found.text
    assert "It does not wait for the device" in found.text
    assert ["operator", "calls", "a step", "of operators"] in found.rows


@pytest.mark.parametrize(
    ("often", "text"), [(1.0, "1"), (3.0, "3"), (0.2, "0.20"), (2.5, "2.50"), (12_000.0, "12,000")]
)
def test_calls_are_whole_where_they_are(often: float, text: str) -> None:
    assert calls(often) == text


def test_shapes_say_what_to_pad_and_to_what() -> None:
    found = page(recorded())
    assert found.row("aten::mm, bfloat16")[1:] == [
        "65536 \N{MULTIPLICATION SIGN} 768 by 768 \N{MULTIPLICATION SIGN} 50257",
        "n from 50257 to 50264",
        "1",
        "31 %",
    ]
    assert "768 at once" in found.row("aten::bmm, bfloat16")[1]
    fits = tuple(dataclasses.replace(one, pad={}) for one in recorded().products)
    assert "None: the sizes of every product" in page(recorded(products=fits)).text


# Memory, losses, the rest -----------------------------------------------------------------------------------


def test_memory_is_drawn_against_all_there_is() -> None:
    found = memory_picture(recorded().memory)
    assert found is not None
    [bar] = found.bars
    assert bar.figure == "12.0 GiB of 139.0 GiB"
    assert [piece.width for piece in bar.pieces] == pytest.approx(
        [100 * size / 139 for size in (1, 1, 2, 7, 1)], abs=0.01
    )
    chart = memory_chart(recorded().memory_timeline)
    assert chart is not None
    assert [tick.label for tick in chart.y_ticks][:2] == ["0 GiB", "5 GiB"]
    assert len(page(recorded()).classed("polygon", "allocated")) == 1


def test_memory_of_a_process_and_of_a_nearly_full_device() -> None:
    host = memory_picture(MemoryUse(host_peak_bytes=3 * GIB, parameter_bytes=GIB))
    assert host is not None
    assert host.bars[0].name == "the process, at the peak"
    assert [key.name for key in host.keys] == ["parameters", "the rest of the process"]
    full = dataclasses.replace(recorded().memory, reserved_peak_bytes=135 * GIB, allocation_retries=3)
    text = page(recorded(memory=full)).text
    assert "More than 90 % of the device is taken" in text
    assert "flush its cache 3 times" in text


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.tuples(st.floats(), st.integers(-1, 1 << 50)), max_size=9),
    losses=st.lists(st.none() | st.floats(), max_size=9),
)
def test_charts_stay_inside_whatever_was_seen(
    sizes: list[tuple[float, int]], losses: list[float | None]
) -> None:
    timeline = [MemoryPoint(ms=ms, allocated_bytes=size) for ms, size in sizes]
    for chart in (memory_chart(timeline), loss_chart(losses)):
        for shape in (*chart.areas, *chart.lines) if chart is not None else ():
            assert chart is not None
            for point in shape.points.split():
                x, y = map(float, point.split(","))
                assert chart.area["left"] - 0.1 <= x <= chart.area["right"] + 0.1
                assert chart.area["top"] - 0.1 <= y <= chart.area["bottom"] + 0.1


def test_losses_break_where_none_was_seen_and_many_are_thinned_without_losing_a_spike() -> None:
    chart = loss_chart([4.0, 3.0, None, 2.0, math.nan, 1.0])
    assert chart is not None
    assert len(chart.lines) == 3
    many = [1.0] * 50_000
    many[31_234] = 9.0
    chart = loss_chart(many)
    assert chart is not None
    assert len(chart.lines[0].points.split()) <= 700
    highest = min(float(point.split(",")[1]) for point in chart.lines[0].points.split())
    assert highest < chart.area["top"] + 20
    assert loss_chart([None, math.inf]) is None


def test_ranks_device_loader_and_notes() -> None:
    rows = (
        SweepRow(settings={}, outcome="measured", samples_per_s=900.0, wait_ms=30.0),
        SweepRow(settings={"num_workers": 8}, outcome="refused", reason="would take too much memory"),
    )
    sweep = LoaderSweep(rows=rows, best={"num_workers": 4}, reason="67 % more samples a second")
    found = page(recorded(ranks=ranks(3), loader_sweep=sweep))
    assert found.row("2") == ["2", "cuda:2", "22.0 ms", "9"]
    assert found.row("tensor cores active")[1] == "< 0.1 %"
    assert found.row("held down by")[1] == "nothing"
    assert found.row("mingpt.CharDataset")[2:] == ["50 us", "31.4 ms", "2.20 ms", "37 %"]
    assert found.row("as written")[1:3] == ["900", "30.0 ms"]
    assert found.row("num_workers=8")[3] == "refused: would take too much memory"
    assert "Best: num_workers=4 : 67 % more" in found.text.replace("num_workers=4:", "num_workers=4 :")
    assert "198 of 200 steps, steady from step 3" in found.text


# Names of others --------------------------------------------------------------------------------------------


def hostile(evil: str) -> Profile:
    """Everything that a script, a driver or a trace can put a name to."""
    base = recorded()
    return recorded(
        run=evil,
        device_name=evil,
        roots=(evil,),
        optimizers=(evil,),
        steady_reason=evil,
        waterfall=(Share(part=evil, ms=1.0, share=1.0),),
        host=(Share(part=evil, ms=1.0, share=1.0),),
        device_parts=(Share(part=evil, ms=1.0, share=1.0),),
        mfu=dataclasses.replace(base.mfu, uncounted_operators={evil: 1}),
        floors=Floors(unknown={"as_written_ms": evil, "fused_ms": evil}),
        memory=MemoryUse(unknown={"allocated_peak_bytes": evil}),
        loaders=(LoaderUse(data_set=evil, settings={evil: evil}, batches=1, wait_ms=1.0),),
        loader_sweep=LoaderSweep(
            rows=(SweepRow(settings={evil: evil}, outcome="failed", reason=evil),),
            best={evil: evil},
            reason=evil,
        ),
        device_use=dataclasses.replace(
            base.device_use,
            source=evil,
            throttle_reasons=(evil,),
            power_draw_mw=None,
            unknown={"power_draw_mw": evil},
        ),
        ranks=(RankUse(rank=0, pid=0, device=evil, step_ms=None, updates=1, unknown={"step_ms": evil}),) * 2,
        findings=(
            Finding(
                code=evil,
                severity="high",
                title=evil,
                evidence=evil,
                fix=evil,
                arithmetic=evil,
                predicted_speedup=1.5,
                where=(Place(file=evil, line=3, function=evil),),
            ),
        ),
        products=(
            ProductShape(
                operator=evil, dtype=evil, batch=1, m=1, n=1, k=1, calls=1, share=1.0, pad={evil: 8}
            ),
        ),
        trace=hostile_trace(evil),
        trial=dataclasses.replace(
            base.trial,
            command=("python", evil, "\udc80"),
            outcome="failed",
            exit_code=1,
            said=(evil,),
            failed_taps={evil: evil},
            shield=Shield(kind="redirect", reason=evil, read_only=(evil,), notes=(evil,)),
        ),
    )


def hostile_trace(evil: str) -> TraceSummary:
    counter = CounterUse(
        kernel=evil,
        calls=1,
        ms=None,
        sm_share=None,
        memory_share=0.5,
        tensor_share=None,
        occupancy=None,
        bound=None,
        unknown={"sm_share": evil},
    )
    rank = RankTrace(
        file=evil,
        rank=None,
        step_ms=None,
        busy_share=None,
        exposed_communication_ms=None,
        unknown={"step_ms": evil},
    )
    return recorded_trace(
        files=(evil,),
        device_name=evil,
        waterfall=(Share(part=evil, ms=1.0, share=1.0),),
        kernels=(KernelUse(name=evil, kind=evil, calls=1.0, ms=1.0, mean_us=1.0, share=1.0),) * 12,
        operators=(OperatorUse(name=evil, calls=1.0, ms=1.0, share=1.0),) * 12,
        syncs=(SyncPoint(call=evil, operator=evil, where=evil, count=1.0, host_ms=1.0, stall_ms=1.0),) * 2,
        counters=(counter,),
        ranks=(rank, rank),
        notes=(evil,),
    )


@pytest.mark.parametrize("evil", [EVIL, EVIL + HUGE], ids=["evil", "huge"])
def test_names_of_others_are_shown_and_never_obeyed(evil: str) -> None:
    for html in (profile_page(hostile(evil)), trace_page(hostile_trace(evil))):
        html.encode()  # no lone surrogates
        for word in ("<script", "\x1b", "\u202e", "\x07"):
            assert word not in html
        found = parsed(html)
        assert found.text.count("<script>alert(1)</script>") >= 10
        assert "{{7*7}}" in found.text
        assert len(html) < 500_000


@settings(deadline=None, max_examples=30)
@given(st.text(max_size=40))
def test_no_name_whatsoever_breaks_the_page(name: str) -> None:
    assert "Where the time goes" in parsed(profile_page(hostile(name))).text


# A trace alone ----------------------------------------------------------------------------------------------


def test_a_trace_alone_has_the_same_sections() -> None:
    html = trace_page(recorded_trace())
    assert re.findall(r"<h2>(.*?)</h2>", html) == [
        "Where the time goes",
        "Kernels",
        "Operators",
        "Where the host waits",
    ]
    found = parsed(html)
    assert "5 steps, 26.1 ms each (95 % under 26.9 ms)" in found.text
    assert "rank0.pt.trace.json.gz on NVIDIA H200: 48,211 events" in found.text
    assert found.row("idle between launches")[1] == "5.30 ms"


def test_a_trace_without_marked_steps_tells_times_of_all_of_it() -> None:
    found = parsed(trace_page(recorded_trace(step_ms=None, unknown={"step_ms": "no steps are marked"})))
    assert "no steps are marked" in found.text
    assert "the whole trace" in found.text
    assert ["operator", "kernels", "in all", "of kernels"] in found.rows


def test_counters_alone_and_ranks_are_shown_too() -> None:
    counter = CounterUse(
        kernel="gemm",
        calls=9,
        ms=1.0,
        sm_share=0.9,
        memory_share=0.2,
        tensor_share=0.8,
        occupancy=0.5,
        bound="compute",
    )
    alone = recorded_trace(
        events=0, steps=0, step_ms=None, waterfall=(), kernels=(), operators=(), syncs=(), counters=(counter,)
    )
    found = parsed(trace_page(alone))
    assert found.row("gemm") == ["gemm", "9", "90 %", "20 %", "80 %", "50 %", "compute"]
    several = tuple(
        RankTrace(file=f"{n}.json", rank=n, step_ms=20.0, busy_share=0.9, exposed_communication_ms=1.5)
        for n in (0, 1)
    )
    assert parsed(trace_page(recorded_trace(ranks=several))).row("rank 1")[1:] == [
        "20.0 ms",
        "90 %",
        "1.50 ms",
    ]
