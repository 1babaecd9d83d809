"""`tune` on a terminal: what helped first, why it learns the same, what it costs; readable when narrow."""

import dataclasses
import io

import pytest
from rich.console import Console

from flatout.records.tuning import GuardEvidence, LeverTrial, Pace, Reliability, Rung, Tuning
from flatout.report.tuning import draw_tuning

TUNING = Tuning(
    run="r",
    command=("python", "train.py"),
    device="NVIDIA H200",
    baseline=Pace(step_ms=102.0, samples_per_s=39.1, mfu=0.034, gpu_busy_share=0.96, peak_bytes=10 << 30),
    best=Pace(step_ms=17.9, samples_per_s=223.0, mfu=0.194, peak_bytes=7 << 30),
    speedup=5.7,
    trials=(
        LeverTrial(lever="tf32", safety="numeric", verdict="rejected", reason="beside the others 1.00x"),
        LeverTrial(
            lever="bf16",
            safety="numeric",
            verdict="kept",
            reason="2.41x faster",
            predicted_speedup=1.9,
            measured_speedup=2.4,
        ),
    ),
    ladder=(
        Rung(lever="bf16", step_ms=42.5, gain=2.4, speedup=2.4),
        Rung(lever="compile (reduce-overhead)", step_ms=17.9, gain=2.37, speedup=5.7),
    ),
    guard=GuardEvidence(verdict="same", paired=True, reason="as close as rounding"),
    tune_seconds=207.0,
    summary="5.70x faster with bf16, compile (reduce-overhead)",
    plan="flatout.toml",
    break_even_steps=2500,
)


def drawn(tuning: Tuning, width: int = 110) -> str:
    out = io.StringIO()
    draw_tuning(tuning, Console(file=out, width=width, color_system=None, highlight=False))
    return out.getvalue()


def test_it_begins_with_the_answer_and_climbs_to_it() -> None:
    text = drawn(TUNING)
    lines = text.splitlines()
    assert lines[0] == "5.70x faster with bf16, compile (reduce-overhead)"
    rungs = [line for line in lines if line.startswith(("as written  ", "+ "))][:3]
    assert [[word for word in rung.split() if word.endswith("x")][-1] for rung in rungs] == [
        "1.00x",
        "2.40x",
        "5.70x",
    ]
    assert [rung.count("█") for rung in rungs] == sorted(rung.count("█") for rung in rungs)
    assert "guard: learns the same: as close as rounding" in text
    assert "tuning took 207 s; paid back after 2,500 steps" in text
    assert "MFU 3.4 %" in text


def test_what_was_kept_comes_before_what_was_not() -> None:
    text = drawn(TUNING)
    assert text.index("2.41x faster") < text.index("beside the others")


def test_nothing_to_gain_has_no_ladder_and_no_plan() -> None:
    nothing = dataclasses.replace(
        TUNING,
        ladder=(),
        speedup=1.0,
        best=TUNING.baseline,
        plan=None,
        break_even_steps=None,
        summary="nothing to gain: 3 levers were tried",
        guard=GuardEvidence(verdict="not needed", paired=True, reason=""),
        unknown={},
    )
    text = drawn(nothing)
    assert text.startswith("nothing to gain")
    assert "with the plan" not in text
    assert "guard" not in text
    assert "plan:" not in text


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert all(len(line) <= width for line in drawn(TUNING, width).splitlines())


def test_control_characters_of_others_do_not_reach_the_terminal() -> None:
    evil = dataclasses.replace(TUNING, notes=("a \x1b[31mred\x1b[0m word",), unknown={})
    assert "\x1b" not in drawn(evil)


def test_levers_that_were_not_tried_are_told_together_with_their_reason() -> None:
    skipped = [
        LeverTrial(lever=name, safety="exact", verdict="skipped", reason=reason)
        for name, reason in (("tf32", "no GPU"), ("allocator", "no GPU"), ("debug-modes", "none is on"))
    ]
    lines = drawn(dataclasses.replace(TUNING, trials=(*TUNING.trials, *skipped))).splitlines()
    start = lines.index("not tried")
    assert lines[start + 1 : start + 3] == ["tf32, allocator: no GPU", "debug-modes: none is on"]
    assert not any(line.startswith("tf32 ") and "skipped" in line for line in lines)


def test_compiling_is_paid_back_by_what_that_alone_saves() -> None:
    text = drawn(dataclasses.replace(TUNING, compile_seconds=24.6), width=200)
    # 24.6 s by 42.4 - 17.9 ms a step.
    assert "compiling alone, 25 s at each start, after 1,003" in text


def test_the_price_is_told_in_gpu_hours_and_predictions_by_their_record() -> None:
    known = {"bf16": Reliability(trials=4, measured_over_predicted=1.25, lowest=1.0, highest=1.5)}
    text = drawn(
        dataclasses.replace(TUNING, gpu_hours=0.0575, break_even_gpu_hours=0.07, calibration=known), width=200
    )
    assert "(0.058 GPU hours; worth it from 0.07 on)" in text
    assert "measured over predicted here so far (trials): bf16 1.25 (4)" in text
