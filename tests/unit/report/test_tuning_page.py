"""The page of `tune`: one inert file whose pictures hold whatever was measured, and nothing that was not."""

import dataclasses
import math
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.records.tuning import GuardEvidence, LeverTrial, Pace, Rung, Tuning
from flatout.report.charts import Axis
from flatout.report.tuning_page import BAR_SPAN, loss_charts, scatter, tuning_page, waterfall
from tests.pages import Page, parsed

EVIL = 'a</title><script>alert(1)</script>"onload=x\x1b[2J\u202e{{7*7}}'
LOSSES = [4.0, 3.5, 3.1, 2.9]
GUARD = GuardEvidence(
    verdict="same",
    paired=True,
    reason="as close as rounding alone",
    same_state={
        "roundoff": 0.0039,
        "first_loss": {"expected": 4.0, "got": 4.001, "allowed": 0.01},
        "worst": {"parameter": "head.weight", "of_allowed": 0.41, "update": 2},
    },
    trajectory={"steps": 4, "apart": 0.001, "twins_apart": 0.002, "allowed": 0.01},
    curves={
        "as written": LOSSES,
        "twin 1": [loss + 0.001 for loss in LOSSES],
        "twin 2": [loss - 0.001 for loss in LOSSES],
        "plan": [loss + 0.0005 for loss in LOSSES],
    },
)


def trial(lever: str, verdict: Any = "kept", **more: Any) -> LeverTrial:
    return LeverTrial(**{"lever": lever, "safety": "numeric", "verdict": verdict, "reason": "so", **more})


TUNING = Tuning(
    run="20261115-102354-tune-dd4bca",
    command=("/usr/bin/python3", "train.py", "--name", "two words"),
    typed="train.py --name 'two words'",
    device="NVIDIA H200",
    baseline=Pace(step_ms=102.0, samples_per_s=39.1, mfu=0.034, gpu_busy_share=0.96, peak_bytes=10 << 30),
    best=Pace(
        step_ms=18.0,
        samples_per_s=222.0,
        mfu=0.193,
        peak_bytes=7 << 30,
        unknown={"gpu_busy_share": "the tracer was off"},
    ),
    speedup=5.67,
    trials=(
        trial("tf32", "skipped", reason="no matrix product in fp32"),
        trial("bf16", predicted_speedup=1.9, measured_speedup=2.38, low=2.31, high=2.42),
        trial(
            "compile",
            settings={"mode": "reduce-overhead"},
            predicted_speedup=1.6,
            measured_speedup=2.27,
            low=2.3,
            high=2.5,
            on_top_of=("bf16", "fused-optimizer"),
        ),
        trial("cudnn-autotune", "unsafe", reason="gradients are 0.500 times what they should be"),
        trial("loader", "failed", settings={"num_workers": 4}, reason="out of memory", safety="resampled"),
        trial("garbage-collector", "rejected", predicted_speedup=1.02, measured_speedup=0.99),
    ),
    ladder=(
        Rung(lever="bf16", step_ms=42.8, gain=2.38, speedup=2.38),
        Rung(lever="fused-optimizer", step_ms=40.9, gain=1.05, speedup=2.49),
        Rung(lever="compile (reduce-overhead)", step_ms=18.0, gain=2.27, speedup=5.67),
    ),
    guard=GUARD,
    tune_seconds=207.0,
    summary="5.67x faster with bf16, fused-optimizer, compile (reduce-overhead)",
    plan="flatout.toml",
    patch=".flatout/runs/r/flatout.patch",
    break_even_steps=2932,
    compile_seconds=39.4,
    notes=("the machine became slower while tuning",),
)
NOTHING = dataclasses.replace(
    TUNING,
    best=TUNING.baseline,
    speedup=1.0,
    ladder=(),
    trials=TUNING.trials[:1],
    guard=GuardEvidence(verdict="not needed", paired=True, reason="nothing was changed"),
    summary="nothing to gain: no lever applies",
    plan=None,
    patch=None,
    break_even_steps=None,
    compile_seconds=None,
    notes=(),
    unknown={"plan": "nothing helped", "break_even_steps": "there is no plan"},
)


def page(tuning: Tuning) -> Page:
    """The parsed page, after the checks that every page must pass."""
    found = parsed(tuning_page(tuning))
    for bar in found.classed("rect", "left") + found.classed("rect", "gone"):
        assert float(bar["x"]) >= 0
        assert float(bar["width"]) > 0
        assert float(bar["x"]) + float(bar["width"]) <= BAR_SPAN + 0.02
    return found


def with_curves(**changes: Any) -> Tuning:
    return dataclasses.replace(TUNING, guard=dataclasses.replace(GUARD, **changes))


def test_it_is_one_file_without_script_or_network_and_says_the_answer_first() -> None:
    html = tuning_page(TUNING)
    assert "url(" not in html
    assert "@import" not in html
    assert "http" not in html
    assert "prefers-color-scheme: dark" in html
    found = page(TUNING)
    headings = re.findall(r"<h1.*?>(.*?)</h1>", html)
    assert headings == [TUNING.summary]
    assert "flatout tune train.py --name 'two words' on NVIDIA H200" in found.text


def test_each_bar_is_as_long_as_its_step_and_begins_to_fade_where_the_one_before_ended() -> None:
    bars = waterfall(TUNING)
    assert [bar.name for bar in bars] == [
        "as written",
        "+ bf16",
        "+ fused-optimizer",
        "+ compile (reduce-overhead)",
        "with the plan",
    ]
    lengths = [102.0, 42.8, 40.9, 18.0, 18.0]
    assert [bar.left for bar in bars] == pytest.approx([BAR_SPAN * ms / 102 for ms in lengths], abs=0.01)
    before = [0.0, 102.0, 42.8, 40.9, 102.0]
    assert [bar.left + bar.gone for bar in bars[1:]] == pytest.approx(
        [BAR_SPAN * ms / 102 for ms in before[1:]], abs=0.02
    )
    assert bars[0].gone == 0
    found = page(TUNING)
    assert found.row("+ bf16")[2:] == ["42.8 ms", "2.38x", "2.38x"]
    assert found.row("with the plan")[2:] == ["18.0 ms", "", "5.67x"]
    assert len(found.classed("rect", "gone")) == 4


def test_without_a_ladder_there_are_two_bars() -> None:
    tuning = dataclasses.replace(TUNING, ladder=())
    assert [bar.name for bar in waterfall(tuning)] == ["as written", "with the plan"]
    found = page(tuning)
    assert len(found.classed("rect", "left")) == 2
    assert len(found.classed("rect", "gone")) == 1
    assert "what the plan took away" in found.text


def test_with_nothing_to_gain_there_is_one_bar_one_column_and_a_friendly_word() -> None:
    found = page(NOTHING)
    assert "Nothing to change" in found.text
    assert len(found.classed("rect", "left")) == 1
    assert not found.classed("rect", "gone")
    assert "with the plan" not in found.text
    assert found.row("MFU") == ["MFU", "3.4 %"]
    assert found.row("plan") == ["plan", "nothing helped"]
    assert found.row("paid back after")[1] == "there is no plan"
    assert "flatout run" not in found.text
    assert "flatout profile train.py" in found.text


def test_one_rung_is_a_ladder_and_one_that_costs_takes_nothing_away() -> None:
    one = dataclasses.replace(TUNING, ladder=TUNING.ladder[:1])
    assert len(page(one).classed("rect", "left")) == 3
    slower = Rung(lever="slower", step_ms=204.0, gain=0.5, speedup=0.5)
    bars = waterfall(dataclasses.replace(TUNING, ladder=(slower,)))
    assert bars[1].left == BAR_SPAN
    assert bars[1].gone == 0
    assert bars[0].left == BAR_SPAN / 2


@pytest.mark.parametrize(
    ("ms", "said"),
    [(0.02, "20 us"), (1.5, "1.50 ms"), (999.9, "1000 ms"), (9000.0, "9.00 s"), (100_000.0, "100 s")],
)
def test_steps_of_any_length_are_said_in_a_unit_that_reads_well(ms: float, said: str) -> None:
    tuning = dataclasses.replace(TUNING, baseline=Pace(step_ms=ms), ladder=())
    assert page(tuning).row("as written")[2] == said


def test_before_and_after_stand_side_by_side_and_the_unknown_has_its_reason() -> None:
    found = page(TUNING)
    assert found.row("a step") == ["a step", "102 ms", "18.0 ms", "\N{MINUS SIGN}82 %"]
    assert found.row("samples/s") == ["samples/s", "39.1", "222", "+468 %"]
    assert found.row("MFU") == ["MFU", "3.4 %", "19 %", "+15.9 points"]
    assert found.row("time in which some kernel ran")[1:] == ["96 %", "unknown", ""]
    assert found.row("memory at its peak")[1:] == ["10.0 GiB", "7.0 GiB", "\N{MINUS SIGN}30 %"]
    assert [attrs["title"] for attrs in found.classed("span", "unknown")] == ["the tracer was off"]


def test_every_lever_is_listed_with_its_verdict_what_helped_first() -> None:
    found = page(TUNING)
    start = found.rows.index(found.row("lever"))
    listed = found.rows[start + 1 : start + 1 + len(TUNING.trials)]
    assert [(row[0], row[1]) for row in listed] == [
        ("bf16", "kept"),
        ("compile (reduce-overhead)", "kept"),
        ("cudnn-autotune", "unsafe"),
        ("loader (num_workers=4)", "failed"),
        ("garbage-collector", "rejected"),
        # Left out, with the reason, behind a fold.
        ("tf32", "no matrix product in fp32"),
    ]
    assert listed[1][2:] == [
        "numeric",
        "1.60x",
        "2.27x2.30\N{EN DASH}2.50",
        "bf16, fused-optimizer",
        "so",
    ]
    # Measured in the ladder, outside the interval of its first comparison: said, not left to wonder.
    assert "measured once more" in found.text
    inside = dataclasses.replace(TUNING, trials=TUNING.trials[:2])
    assert "measured once more" not in page(inside).text


def test_predicted_and_measured_meet_on_the_diagonal() -> None:
    chart = scatter([trial("a", predicted_speedup=v, measured_speedup=v, low=v, high=v) for v in (1.0, 2, 4)])
    assert chart is not None
    (x1, y1), (x2, y2) = (tuple(map(float, point.split(","))) for point in chart.lines[0].points.split())
    for dot in chart.dots:
        assert (dot.x - x1) / (x2 - x1) == pytest.approx((dot.y - y1) / (y2 - y1), abs=0.001)
    assert len(page(TUNING).classed("circle", "dot")) == 3
    # bf16's interval holds its dot; compile's is of another comparison and would float beside it.
    assert len(page(TUNING).classed("line", "whisker")) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0, None])
def test_what_cannot_stand_on_a_log_scale_is_left_out(value: float | None) -> None:
    good = trial("good", predicted_speedup=1.2, measured_speedup=1.3)
    bad = trial("bad", predicted_speedup=value, measured_speedup=1.1, low=value, high=value)
    assert scatter([good, bad]) is None
    chart = scatter([good, good, bad])
    assert chart is not None
    assert len(chart.dots) == 2
    found = page(dataclasses.replace(TUNING, trials=(good, good, bad)))
    assert "nan" not in found.text
    assert "infx" not in found.text


def test_many_levers_at_one_place_do_not_write_over_each_other() -> None:
    crowd = [trial(f"a-long-name-{n}", predicted_speedup=1.1, measured_speedup=1.1) for n in range(40)]
    chart = scatter([*crowd, trial("far", predicted_speedup=3.0, measured_speedup=3.0)])
    assert chart is not None
    places = [(dot.label_x, dot.label_y) for dot in chart.dots if dot.label]
    assert 1 < len(places) < 40
    assert len(set(places)) == len(places)


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("same", "Learns the same"),
        ("unsafe", "Does not learn the same"),
        ("weak", "Learns the same, weakly shown"),
        ("not needed", "Nothing to prove"),
    ],
)
def test_the_guard_is_told_in_words(verdict: Any, words: str) -> None:
    found = page(with_curves(verdict=verdict, reason="because of this"))
    assert f"{words} because of this" in found.text


def test_the_guard_shows_the_losses_the_twins_as_a_band_and_the_distance() -> None:
    found = page(TUNING)
    assert len(found.classed("polygon", "twins")) == 2
    assert len(found.classed("polyline", "written")) == 1
    assert [len(attrs["points"].split()) for attrs in found.classed("polyline", "plan")] == [4, 4]
    assert found.row("first loss") == ["first loss", "expected 4, got 4.001, allowed 0.01"]
    assert found.row("worst parameter")[1].startswith("head.weight, 41")
    assert found.row("the furthest twin's distance")[1] == "0.002"


def test_runs_that_did_not_see_the_same_have_no_distance() -> None:
    assert [chart.title for chart in loss_charts(dataclasses.replace(GUARD, paired=False))] == ["Loss"]


def test_values_that_are_none_break_the_line_and_the_rest_is_drawn() -> None:
    curves = {
        "as written": [4.0, 3.0, math.nan, 2.0, 1.0],
        "twin 1": [math.inf, 3.0, 2.5, math.nan, 1.0],
        "plan": [math.nan, math.nan, 2.5, -math.inf, 1.0, 1e300],
    }
    found = page(with_curves(curves=curves))
    written = [attrs["points"].split() for attrs in found.classed("polyline", "written")]
    assert [len(points) for points in written] == [2, 2]
    # A lone point is drawn as a line of no length.
    assert all(len(attrs["points"].split()) == 2 for attrs in found.classed("polyline", "plan"))


@pytest.mark.parametrize(
    "curves",
    [
        {},
        {"as written": [], "plan": []},
        {"as written": [math.nan] * 3, "twin 1": [math.nan] * 3, "plan": [math.inf] * 3},
        {"as written": [0.0] * 3, "twin 1": [0.0] * 3, "plan": [0.0] * 3},
        {"as written": [2.0], "twin 1": [2.0], "plan": [2.0]},
        {"as written": [1e-320, 1e99], "twin 1": [-1e99], "plan": [5e-324]},
        {"as written": [1.0, 1e6], "plan": [1.0, 1e9]},
        {"plan": [1.0, 2.0]},
    ],
)
def test_odd_curves_are_drawn_or_left_out_but_never_wrong(curves: dict[str, list[float]]) -> None:
    tuning = with_curves(curves=curves)
    page(tuning)  # every number in it is finite
    something = any(math.isfinite(value) for curve in curves.values() for value in curve)
    assert bool(loss_charts(tuning.guard)) == something


def test_free_evidence_of_any_shape_is_readable() -> None:
    odd = {"a_b": {"deep": {"x": [1, 2.5, None]}}, "none": None, "yes": True, "inf": math.inf, "empty": {}}
    found = page(with_curves(same_state=odd, trajectory={}))
    assert found.row("a b")[1] == "deep (x (1, 2.5, unknown))"
    assert [found.row(name)[1] for name in ("none", "yes", "inf", "empty")] == [
        "unknown",
        "yes",
        "infinite",
        "nothing",
    ]


def test_the_cost_and_how_to_go_on() -> None:
    found = page(TUNING)
    assert found.row("tuning took")[1] == "207 s"
    assert found.row("paid back after")[1] == "2,932 steps, which take 53 s with the plan"
    assert found.row("patch")[1] == ".flatout/runs/r/flatout.patch"
    assert "the machine became slower while tuning" in found.text
    assert "flatout run train.py --name 'two words'" in found.text
    assert "flatout patch " in found.text
    other = page(
        dataclasses.replace(TUNING, plan="my plan.toml", command=("/bin/torchrun", "train.py"), typed="")
    )
    assert "flatout run --plan 'my plan.toml' -- /bin/torchrun train.py" in other.text
    assert "flatout patch --plan 'my plan.toml'" in other.text


def test_text_of_others_is_shown_and_never_obeyed() -> None:
    evil = dataclasses.replace(
        TUNING,
        summary=EVIL,
        device=EVIL,
        command=("python", EVIL, "\udc80"),
        run=EVIL,
        plan=EVIL,
        patch=EVIL,
        notes=(EVIL,),
        ladder=(Rung(lever=EVIL, step_ms=50.0, gain=2.0, speedup=2.0),),
        trials=tuple(
            trial(EVIL, reason=EVIL, settings={EVIL: EVIL}, on_top_of=(EVIL,), predicted_speedup=v, low=v)
            for v in (1.0, 2.0)
        ),
        best=Pace(step_ms=50.0, unknown={"mfu": EVIL}),
        guard=dataclasses.replace(GUARD, reason=EVIL, same_state={EVIL: {EVIL: EVIL}}),
        unknown={},
    )
    html = tuning_page(evil)
    html.encode()  # no lone surrogates
    assert "<script" not in html
    assert "\x1b" not in html
    assert "\u202e" not in html
    found = page(evil)
    assert found.text.count("<script>alert(1)</script>") >= 10
    assert "{{7*7}}" in found.text
    assert "49" not in re.findall(r"<h1.*?>(.*?)</h1>", html, re.DOTALL)[0]


def test_huge_names_and_no_levers_at_all() -> None:
    huge = "x" * 5000
    long = dataclasses.replace(
        TUNING,
        summary=huge,
        ladder=tuple(Rung(lever=huge, step_ms=50.0 - n, gain=1.1, speedup=2.0) for n in range(10)),
        trials=(trial(huge, predicted_speedup=1.1, measured_speedup=1.2),) * 2,
    )
    assert len(page(long).classed("rect", "left")) == 12
    assert "No lever was tried" in page(dataclasses.replace(TUNING, trials=())).text


@pytest.mark.parametrize("low", [1.0, 0.999, 1e-6])
@pytest.mark.parametrize("high", [1.001, 1.05, 40.0, 1e12])
@pytest.mark.parametrize("log", [True, False])
def test_an_axis_has_a_handful_of_ticks_within_its_ends(low: float, high: float, log: bool) -> None:
    axis = Axis([low, high], 100.0, 0.0, log=log)
    ticks = axis.ticks()
    assert 2 <= len(ticks) <= 10
    assert all(-0.1 <= tick.at <= 100.1 for tick in ticks)
    assert len({tick.label for tick in ticks}) == len(ticks)


times = st.floats(min_value=0.0, max_value=1e9) | st.sampled_from([0.02, 100_000.0, math.nan, math.inf, -1.0])
factors = st.floats(allow_nan=True, allow_infinity=True)


@settings(deadline=None, max_examples=60)
@given(
    written=times,
    best=times,
    speedup=factors,
    rungs=st.lists(st.tuples(st.text(max_size=60), times, factors, factors), max_size=12),
)
def test_bars_stay_inside_the_picture_whatever_was_measured(
    written: float, best: float, speedup: float, rungs: list[tuple[str, float, float, float]]
) -> None:
    tuning = dataclasses.replace(
        TUNING,
        baseline=Pace(step_ms=written),
        best=Pace(step_ms=best),
        speedup=speedup,
        ladder=tuple(Rung(lever=n, step_ms=ms, gain=g, speedup=s) for n, ms, g, s in rungs),
    )
    for bar in waterfall(tuning):
        assert 0 < bar.left <= BAR_SPAN
        assert bar.gone >= 0
        assert bar.left + bar.gone <= BAR_SPAN + 0.02
    assert len(page(tuning).classed("rect", "left")) == len(waterfall(tuning))


@settings(deadline=None, max_examples=60)
@given(
    curves=st.dictionaries(
        st.sampled_from(["as written", "twin 1", "twin 2", "plan"]), st.lists(st.floats(), max_size=6)
    )
)
def test_curves_stay_inside_the_picture_whatever_was_lost(curves: dict[str, list[float]]) -> None:
    for chart in loss_charts(dataclasses.replace(GUARD, curves=curves)):
        for shape in (*chart.areas, *chart.lines):
            for point in shape.points.split():
                x, y = map(float, point.split(","))
                assert chart.area["left"] <= x <= chart.area["right"]
                assert chart.area["top"] <= y <= chart.area["bottom"]
        for tick in chart.y_ticks:
            assert chart.area["top"] - 0.1 <= tick.at <= chart.area["bottom"] + 0.1
