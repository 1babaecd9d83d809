"""MFU: counted work over time over a peak, per device; above 100 % it is refused, never printed."""

import datetime as dt
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.analyze.mfu import mfu
from flatout.records.limits import ClockState, Limits, Measured, MeasuredDevice, RatedPeaks
from flatout.records.profile import Mfu

BF16, FP32 = 800e12, 50e12
RATED_BF16 = 989e12


def limits(**measured: float) -> Limits:
    device = MeasuredDevice(
        name="NVIDIA H200",
        torch_device="cuda:0",
        vendor="nvidia",
        uuid="GPU-1",
        index=0,
        memory_total_bytes=1 << 37,
        driver_version="580",
        torch_version="2.13.0",
    )
    return Limits(
        device=device,
        measured=Measured(matmul_flops_per_s=measured),  # type: ignore[arg-type]
        rated=None,
        rated_reason="",
        matmuls=(),
        clocks=ClockState(samples=0),
        cpu=None,
        measured_at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        took_s=30.0,
        method=1,
    )


def rated(**flops: float) -> RatedPeaks:
    return RatedPeaks(
        id="h200",
        name="H200",
        dense_flops_per_s=flops,  # type: ignore[arg-type]
        memory_bytes_per_s=4.8e12,
        host_link_bytes_per_s=None,
        source="data sheet",
        source_url="https://example.org",
    )


def counted(flops: int, **more: Any) -> dict[str, Any]:
    return {"flops": flops, "recomputed_flops": 0, "by_operator": {}, "uncounted": {}, **more}


def of(flops: dict[str, Any] | None, **changes: Any) -> Mfu:
    facts: dict[str, Any] = {
        "reason": "",
        "step_s": 0.1,
        "devices": 1,
        "on_cpu": False,
        "rated": rated(bf16=RATED_BF16),
        "rated_reason": "",
        "limits": limits(bf16=BF16, fp32=FP32),
        "limits_reason": "",
        **changes,
    }
    reason, step_s = facts.pop("reason"), facts.pop("step_s")
    return mfu(flops, reason, step_s, **facts)


def insist_on_reasons(found: Mfu) -> None:
    for name in ("of_rated", "of_measured", "flops_per_step", "rated_flops_per_s", "measured_flops_per_s"):
        if getattr(found, name) is None:
            assert found.unknown[name], name


def test_it_is_work_over_time_over_the_peak_of_the_device() -> None:
    found = of(counted(int(40e12)))  # 400 TFLOP/s
    assert found.of_measured == pytest.approx(0.5)
    assert found.of_rated == pytest.approx(400 / 989)
    assert (found.peak_dtype, found.rated_source, found.reason) == ("bf16", "data sheet", "")
    assert found.flops_per_step == int(40e12)


def test_on_a_cpu_the_peak_is_that_of_fp32() -> None:
    found = of(counted(int(1e12)), on_cpu=True)
    assert found.peak_dtype == "fp32"
    assert found.of_measured == pytest.approx(10e12 / FP32)
    assert found.of_rated is None
    assert found.unknown["of_rated"] == "no rated fp32 peak"


def test_on_a_card_without_bf16_the_peak_is_that_of_fp16() -> None:
    found = of(counted(int(3e12)), rated=rated(fp16=65e12, fp32=8e12), limits=limits(fp16=40e12))
    assert found.peak_dtype == "fp16"
    assert (found.of_rated, found.of_measured) == (pytest.approx(30 / 65), pytest.approx(0.75))


@pytest.mark.parametrize(("fp8_calls", "dtype"), [(3, "fp8"), (1, "bf16")])
def test_a_job_that_computes_mostly_in_fp8_is_held_against_that_peak(fp8_calls: int, dtype: str) -> None:
    moves = [
        ["aten._scaled_mm", 100, 10, "float8_e4m3fn", fp8_calls],
        ["aten.mm", 100, 10, "bfloat16", 2],
        ["aten.add", 0, 10, "bfloat16", 99],
    ]
    found = of(counted(int(100e12), moves=moves), rated=rated(bf16=1100e12, fp8=1979e12))
    assert found.peak_dtype == dtype
    assert found.of_rated == pytest.approx(1000e12 / (1979e12 if dtype == "fp8" else 1100e12))
    # Where nobody knows the peak of fp8, it is no yardstick.
    assert of(counted(int(40e12), moves=moves)).peak_dtype == "bf16"


def test_a_job_whose_products_a_lever_lets_be_float8_is_held_against_that_peak() -> None:
    found = of(counted(int(100e12)), rated=rated(bf16=1100e12, fp8=1979e12), made_fp8=True)
    assert (found.peak_dtype, found.of_rated) == ("fp8", pytest.approx(1000e12 / 1979e12))
    assert of(counted(int(40e12)), made_fp8=True).peak_dtype == "bf16"


def test_the_work_of_all_ranks_is_shared_by_their_devices() -> None:
    assert of(counted(int(320e12)), devices=8).of_measured == pytest.approx(0.5)


@settings(deadline=None)
@given(flops=st.integers(1, 10**18), step_s=st.floats(1e-6, 1e3), devices=st.integers(1, 64))
def test_it_is_never_above_one_hundred_percent(flops: int, step_s: float, devices: int) -> None:
    found = of(counted(flops), step_s=step_s, devices=devices)
    for value, peak in ((found.of_rated, RATED_BF16), (found.of_measured, BF16)):
        true = flops / step_s / devices / peak
        assert (value is None) == (true > 1)
        assert value is None or value == pytest.approx(true)
    insist_on_reasons(found)
    if found.of_measured is None:
        assert "above 100 %" in found.unknown["of_measured"]
        assert "above 100 %" in found.reason


def test_the_one_that_is_possible_stays_when_the_other_is_refused() -> None:
    found = of(counted(int(90e12)))  # 900 TFLOP/s: above what was measured, below what is rated
    assert found.of_measured is None
    assert found.of_rated == pytest.approx(900 / 989)
    assert "of_rated" not in found.unknown


def test_a_record_above_one_hundred_percent_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="cannot be"):
        Mfu(of_rated=1.01, of_measured=None, peak_dtype="bf16", flops_per_step=1)


def test_work_that_was_not_counted_says_why() -> None:
    found = of(None, reason="the script ended before")
    assert found.of_rated is found.of_measured is found.flops_per_step is None
    assert found.unknown["of_rated"] == found.unknown["of_measured"] == "the script ended before"
    assert (found.rated_flops_per_s, found.measured_flops_per_s) == (RATED_BF16, BF16)
    insist_on_reasons(found)


def test_peaks_that_are_missing_keep_their_own_reasons_where_the_work_is_missing_too() -> None:
    found = of(
        None,
        reason="it ended before",
        rated=None,
        rated_reason="no such card",
        limits=None,
        limits_reason="not measured",
    )
    assert found.unknown["rated_flops_per_s"] == "no such card"
    assert found.unknown["measured_flops_per_s"] == "not measured"
    assert found.unknown["of_rated"] == "it ended before"


def test_a_step_without_model_work_is_not_zero_percent() -> None:
    found = of(counted(0))
    assert found.of_measured is None
    assert "no operation that counts" in found.reason
    assert found.flops_per_step == 0


def test_without_a_step_time_there_is_no_rate() -> None:
    found = of(counted(int(1e12)), step_s=None)
    assert found.of_measured is None
    assert found.unknown["of_measured"] == "no steady step time"


def test_each_missing_peak_leaves_the_other() -> None:
    only_rated = of(counted(int(1e12)), limits=None, limits_reason="never measured")
    assert only_rated.of_rated is not None
    assert only_rated.unknown["of_measured"] == "never measured"
    only_measured = of(counted(int(1e12)), rated=None, rated_reason="not in the catalogue")
    assert only_measured.of_measured is not None
    assert only_measured.unknown["of_rated"] == "not in the catalogue"
    other_dtype = of(counted(int(1e12)), limits=limits(fp32=FP32))
    assert other_dtype.unknown["of_measured"] == "bf16 was not measured"


def test_recomputed_and_uncounted_work_is_told_beside_it() -> None:
    found = of(counted(int(1e12), recomputed_flops=7, uncounted={"mine::op": 3}))
    assert found.recomputed_flops_per_step == 7
    assert found.uncounted_operators == {"mine::op": 3}
    assert found.of_measured == pytest.approx(1e13 / BF16)
