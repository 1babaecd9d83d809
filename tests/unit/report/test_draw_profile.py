"""A profile in a terminal: every figure at every width, and nothing from outside is obeyed."""

import dataclasses
import io
import re
import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from flatout.records.profile import (
    CompileUse,
    DeviceUse,
    Floors,
    LoaderSweep,
    LoaderUse,
    MemoryUse,
    Mfu,
    Profile,
    SweepRow,
)
from flatout.records.ranks import RankUse
from flatout.records.step import Share
from flatout.records.trace import KernelUse, SyncPoint
from flatout.records.trial import Shield
from flatout.records.words import percent
from flatout.report.figures import count, milliseconds, number
from flatout.report.profile import draw_profile
from tests.profiles import GIB, profile, recorded, recorded_trace

EVIL = "GPT[bold red]\x1b[2J\x1b]0;owned\x07\r\n\u202eevil[/bold red]:smile:\x9b31m"


def drawn(found: Profile, width: int = 120, encoding: str = "utf-8") -> str:
    buffer = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
    draw_profile(found, Console(file=buffer, width=width, highlight=False, markup=False, emoji=False))
    buffer.flush()
    return buffer.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


def in_one_line(text: str) -> str:
    """What was drawn, with the terminal's line breaks taken out again."""
    return " ".join(text.split())


def hostile() -> Profile:
    """Everything that a script or a driver can put a name to."""
    base = profile()
    row = SweepRow(settings={EVIL: EVIL}, outcome="failed", reason=EVIL)
    return profile(
        device_name=EVIL,
        roots=(EVIL, EVIL),
        optimizers=(EVIL,),
        steady_reason=EVIL,
        mfu=dataclasses.replace(base.mfu, uncounted_operators={EVIL: 1}, recomputed_flops_per_step=10**12),
        loaders=(LoaderUse(data_set=f"x.{EVIL}", settings={"batch_size": EVIL}, batches=1, wait_ms=1.0),),
        compile=CompileUse(
            compiles=3, recompiles=1, compile_s=2.0, compiles_in_steady_state=0, graph_breaks={EVIL: 4}
        ),
        device_use=dataclasses.replace(base.device_use, source=EVIL, throttle_reasons=(EVIL,)),
        loader_sweep=LoaderSweep(rows=(row,), best={EVIL: EVIL}, reason=EVIL),
        trial=dataclasses.replace(
            base.trial,
            outcome="failed",
            exit_code=1,
            said=(EVIL,),
            failed_taps={EVIL: EVIL},
            shield=Shield(kind="redirect", reason=EVIL, read_only=(EVIL,), notes=(EVIL,)),
        ),
    )


# Widths and names -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [20, 79, 80, 120])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_every_width_shows_the_figures_without_overflow(width: int, encoding: str) -> None:
    text = drawn(profile(), width, encoding)
    for one in text.splitlines():
        assert len(one) <= width, one
    flat = in_one_line(text)
    for figure in ("22.8 ms a step", "2,795 samples/s", "357,800 tokens/s", "3.4 %", "4.2 %", "11.0 GiB"):
        assert figure in flat, figure


@pytest.mark.parametrize("width", [20, 80, 120])
def test_names_from_outside_are_shown_and_not_obeyed(width: int) -> None:
    text = drawn(hostile(), width)
    for character in text:
        assert character == "\n" or unicodedata.category(character)[0] != "C", hex(ord(character))
    joined = "".join(text.split())
    assert "[boldred]" in joined  # markup, shown
    assert ":smile:" in joined
    assert "\\x1b[2J" in joined  # an escape, shown
    for one in text.splitlines():
        assert len(one) <= width, one


@settings(deadline=None, max_examples=40)
@given(st.text(max_size=60))
def test_no_name_whatsoever_brings_a_control_character_to_the_terminal(name: str) -> None:
    text = drawn(profile(device_name=name, roots=(name,)), 80, "utf-8")
    assert all(c == "\n" or unicodedata.category(c)[0] != "C" for c in text)


def test_bars_are_drawn_where_there_is_room_and_as_long_as_their_shares() -> None:
    def bars(text: str, block: str) -> list[int]:
        return [one.count(block) for one in text.splitlines() if block in one]

    assert bars(drawn(profile(), 80), "█") == [10, 20, 12, 18]
    assert bars(drawn(profile(), 80, "ascii"), "#") == [10, 20, 12, 18]
    assert bars(drawn(profile(), 79), "█") == []


# Sections ---------------------------------------------------------------------------------------------------


def test_the_head_names_model_optimizer_device_and_pace() -> None:
    first, second, *_ = drawn(profile()).splitlines()
    assert first == "GPT, 124 M parameters, AdamW on NVIDIA H200"
    assert second.startswith("22.8 ms a step (± 0.12 ms; 95 % under 24.1 ms), 2,795 samples/s")


def test_several_ranks_are_counted() -> None:
    ranks = tuple(RankUse(rank=r, pid=r, device=f"cuda:{r}", step_ms=1.0, updates=9) for r in range(4))
    assert "on NVIDIA H200, 4 ranks" in drawn(profile(ranks=ranks))


def test_a_job_of_which_little_is_known_is_drawn_too() -> None:
    nothing = profile(
        step_ms=None,
        device=None,
        device_name=None,
        samples_per_s=None,
        tokens_per_s=None,
        waterfall=(),
        host=(),
        device_parts=(),
        evaluation_ms=None,
        evaluations=0,
        mfu=Mfu(of_rated=None, of_measured=None, peak_dtype=None, flops_per_step=None, reason="it ended"),
        memory=MemoryUse(),
        loaders=(),
        device_use=DeviceUse(samples=0),
        ranks=(),
        parameters=None,
        optimizers=(),
        roots=(),
        steady=False,
        steady_reason="only 1 steps",
        updates=1,
    )
    text = drawn(nothing, 80)
    assert "an unknown device" in text
    assert "1 updates, too few for a step time" in text
    assert "MFU: unknown (it ended)" in text
    assert "not steady yet: only 1 steps" in text
    assert "None" not in text


def test_an_mfu_that_was_refused_is_said_to_be_unknown_and_shows_no_figure() -> None:
    refused = dataclasses.replace(
        profile().mfu, of_rated=None, of_measured=None, unknown={"of_measured": "refused: above 100 %"}
    )
    text = drawn(profile(mfu=refused))
    assert "MFU: unknown (refused: above 100 %)" in text


def test_a_nearly_full_device_and_an_allocator_that_flushes_are_said() -> None:
    memory = dataclasses.replace(profile().memory, reserved_peak_bytes=130 * GIB, allocation_retries=3)
    text = drawn(profile(memory=memory))
    assert "more than 90 % of the device is taken" in text
    assert "flush its cache 3 times" in text
    assert "flush" not in drawn(profile())


def test_a_job_on_the_cpu_tells_what_the_process_held() -> None:
    memory = MemoryUse(host_peak_bytes=3 * GIB, parameter_bytes=5 << 20)
    assert "the process held 3.0 GiB at most: parameters 5 MiB" in drawn(profile(memory=memory))


def test_the_loader_and_its_sweep_are_told() -> None:
    rows = (
        SweepRow(settings={}, outcome="measured", samples_per_s=900.0, step_ms=70.0, wait_ms=30.0),
        SweepRow(settings={"num_workers": 4}, outcome="measured", samples_per_s=1500.0, wait_ms=0.01),
        SweepRow(settings={"num_workers": 8}, outcome="refused", reason="would take too much memory"),
    )
    best = LoaderSweep(rows=rows, best={"num_workers": 4}, reason="67% more samples a second")
    for width in (60, 100):
        text = in_one_line(drawn(profile(loader_sweep=best), width))
        assert "the loop waits 50 us a batch" in text
        assert "making one takes 31.4 ms to load and 2.20 ms to collate" in text
        assert "as written" in text
        assert "1,500 samples/s" in text
        assert "would take too much memory" in text
        assert "best: DataLoader(..., num_workers=4): 67% more samples a second" in text
    kept = dataclasses.replace(best, best=None, reason="no setting is faster")
    assert "keep the loader as it is: no setting is faster" in in_one_line(drawn(profile(loader_sweep=kept)))


def test_notes_say_what_to_make_of_the_figures() -> None:
    text = drawn(profile(pace_shifted_at=120, micro_batches=4.0, skipped_updates=2), 200)
    assert "198 of 200 steps, steady from step 3 (after the first steps), timed by device events" in text
    assert "the pace shifted at step 120" in text
    assert "4.00 micro-batches a step" in text
    assert "2 updates were skipped by the GradScaler" in text
    plain = drawn(profile(), 200)
    assert "shifted" not in plain
    assert "micro-batches" not in plain


@pytest.mark.parametrize(
    ("outcome", "facts", "words"),
    [
        ("failed", {"exit_code": 3}, "exit code 3"),
        ("killed", {"signal": 9}, "signal 9"),
        ("silent", {}, "it hung"),
    ],
)
def test_a_script_that_did_not_end_well_is_said_so(outcome: Any, facts: dict[str, Any], words: str) -> None:
    trial = dataclasses.replace(profile().trial, outcome=outcome, said=("first", "the end"), **facts)
    text = drawn(profile(trial=trial), 200)
    assert re.search(rf"THE SCRIPT DID NOT END WELL \({words}.*\): the end", text)
    assert "DID NOT" not in drawn(profile())


# Words ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0.0 %"),
        (0.0001, "< 0.1 %"),
        (0.0005, "0.1 %"),
        (0.0049, "0.5 %"),
        (0.0949, "9.5 %"),
        (0.1, "10 %"),
        (0.4567, "46 %"),
        (0.999, "100 %"),
        (1, "100 %"),
    ],
)
def test_shares_in_words(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 us"),
        (0.0004, "0 us"),
        (0.0094, "9 us"),
        (0.0999, "100 us"),
        (0.1, "0.10 ms"),
        (9.994, "9.99 ms"),
        (9.996, "10.0 ms"),
        (99.96, "100 ms"),
        (999.4, "999 ms"),
        (1000.0, "1.00 s"),
        (61_234.0, "61.2 s"),
    ],
)
def test_times_in_words(value: float, text: str) -> None:
    assert milliseconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(None, "?"), (0.5, "0.50"), (999.0, "999"), (1234.5, "1,234")])
def test_rates_in_words(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(7, "7"), (1500, "1.50 k"), (124_000_000, "124 M"), (3 * 10**15, "3.00 P")]
)
def test_counts_in_words(value: int, text: str) -> None:
    assert count(value) == text


@settings(deadline=None)
@given(st.floats(0, 1e7))
def test_a_time_is_never_more_than_half_a_last_digit_off(value: float) -> None:
    number, unit = milliseconds(value).split()
    size = {"us": 0.001, "ms": 1, "s": 1000}[unit]
    assert float(number) == pytest.approx(value / size, rel=0.0051, abs=0.51 if unit == "us" else 0.0051)


# With a recording -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [20, 80, 120])
def test_a_recorded_profile_shows_where_the_time_goes_in_place_of_the_parts(width: int) -> None:
    text = drawn(recorded(), width)
    for one in text.splitlines():
        assert len(one) <= width, one
    flat = in_one_line(text)
    for words in ("where the time goes", "matrix products", "7.60 ms", "idle after a wait"):
        assert words in flat, words
    assert "on the host" not in flat
    assert "on the host" in drawn(recorded(trace=None), width)


def test_it_keeps_to_one_screen() -> None:
    trace = recorded_trace()
    syncs = tuple(dataclasses.replace(trace.syncs[0], operator=f"aten::op{n}") for n in range(9))
    text = drawn(recorded(trace=dataclasses.replace(trace, syncs=syncs)), 160)
    assert len(text.splitlines()) <= 50
    assert sum(one.startswith("the host waits") for one in text.splitlines()) == 3
    kernels = text[text.index("\nkernels") :].split("\n\n")[0].strip().splitlines()
    assert len(kernels) == 6
    assert re.findall(r"^F\d+", text, re.MULTILINE) == ["F303", "F201", "F306"]
    assert "and 1 more: in the report" in text


def test_without_a_page_that_has_the_rest_every_finding_is_shown() -> None:
    text = drawn(recorded(report=None), 160)
    assert len(re.findall(r"^F\d+", text, re.MULTILINE)) == 4
    assert "more: in the report" not in text


def test_the_floors_are_one_line() -> None:
    known = "9.10 ms as written (2.51x faster), 4.00 ms ideally fused (5.70x faster)"
    assert f"floors: at the device's limits a step takes {known}\n" in drawn(recorded(), 160)
    unknown = Floors(unknown={"as_written_ms": "no limits"})
    assert "floors: unknown (no limits)" in drawn(recorded(floors=unknown))


def test_names_of_a_recording_are_shown_and_not_obeyed() -> None:
    kernels = (KernelUse(name=EVIL, kind=EVIL, calls=1.0, ms=1.0, mean_us=1.0, share=1.0),)
    syncs = (SyncPoint(call=EVIL, operator=EVIL, where=EVIL, count=1.0, host_ms=1.0, stall_ms=1.0),)
    parts = (Share(part=EVIL, ms=1.0, share=1.0),)
    text = drawn(recorded(trace=recorded_trace(kernels=kernels, syncs=syncs), waterfall=parts), 80)
    assert all(c == "\n" or unicodedata.category(c)[0] != "C" for c in text)
