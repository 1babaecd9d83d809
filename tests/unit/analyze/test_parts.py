"""Every table sums to the whole, whatever was measured; what nobody claims is said to be nobody's."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.analyze.parts import device_parts, host_parts, waterfall
from flatout.records.step import Share, StepTimes
from tests.unit.analyze.events import MS, step, steps

PARTS = ("loader", "copy", "forward", "backward", "clipping", "optimizer")
NAMES = ("between", "copy", "forward", "loss", "backward", "after_backward", "optimizer")
CPU_WATERFALL = ["input_wait", "optimizer", "host_compute", "unattributed"]


def times(mean: float) -> StepTimes:
    return StepTimes(p50=mean, p95=mean, mean=mean, low=mean, high=mean, clock="host")


def by_part(shares: tuple[Share, ...]) -> dict[str, float]:
    return {share.part: share.ms for share in shares}


def sums_to(shares: tuple[Share, ...], whole_ms: float) -> bool:
    assert all(share.ms >= 0 for share in shares)
    assert sum(share.share for share in shares) == pytest.approx(1)
    return sum(share.ms for share in shares) == pytest.approx(whole_ms)


@st.composite
def host_steps(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Steps whose parts fit into them, some with an evaluation."""
    made = []
    for _ in range(draw(st.integers(1, 6))):
        own = {f"{part}_ns": draw(st.integers(0, 50 * MS)) for part in PARTS}
        evaluation = draw(st.integers(0, 400 * MS))
        other = draw(st.integers(1, 50 * MS))
        whole = sum(own.values()) + evaluation + other
        made.append(step(**own, evaluation_ns=evaluation, evaluations=bool(evaluation), ended_ns=whole))
    return made


@settings(deadline=None)
@given(host_steps())
def test_the_host_table_and_the_waterfall_of_a_cpu_sum_to_the_step_without_evaluation(
    some: list[dict[str, Any]],
) -> None:
    whole = sum(one["ended_ns"] - one["evaluation_ns"] for one in some) / len(some) / MS
    assert sums_to(host_parts(some), whole)
    shares = waterfall(some, times(whole), on_gpu=False)
    assert sums_to(shares, whole)
    assert [share.part for share in shares] == CPU_WATERFALL


@settings(deadline=None)
@given(
    parts=st.lists(
        st.dictionaries(st.sampled_from(NAMES), st.floats(0.001, 100), min_size=1), min_size=1, max_size=6
    ),
    waited=st.integers(0, 500 * MS),
    mean=st.floats(0.01, 1000),
)
def test_the_device_table_and_the_waterfall_of_a_gpu_sum_to_the_whole(
    parts: list[dict[str, float]], waited: int, mean: float
) -> None:
    some = [step(device_ms=sum(one.values()), device_parts_ms=one, loader_ns=waited) for one in parts]
    assert sums_to(device_parts(some), sum(sum(one.values()) for one in parts) / len(parts))
    assert sums_to(waterfall(some, times(mean), on_gpu=True), mean)


def test_a_part_goes_where_the_design_says() -> None:
    own = {"loader_ns": 10 * MS, "copy_ns": 5 * MS, "forward_ns": 20 * MS, "backward_ns": 30 * MS}
    some = [step(**own, clipping_ns=1 * MS, optimizer_ns=4 * MS)] * 3
    assert by_part(host_parts(some)) == {
        "input": 10,
        "copies": 5,
        "forward": 20,
        "backward": 30,
        "clipping": 1,
        "optimizer": 4,
        "other": 30,
    }
    shares = by_part(waterfall(some, times(100.0), on_gpu=False))
    assert shares == {"input_wait": 10, "optimizer": 4, "host_compute": 56, "unattributed": 30}


def test_on_a_gpu_waiting_costs_no_more_than_the_device_stood_idle() -> None:
    parts = {"between": 6.0, "copy": 2.0, "forward": 40.0, "backward": 50.0, "optimizer": 2.0}
    some = [step(device_ms=100.0, device_parts_ms=parts, loader_ns=30 * MS)]
    shares = by_part(waterfall(some, times(100.0), on_gpu=True))
    assert shares == {"input_wait": 6, "host_to_device": 2, "optimizer": 2, "unattributed": 90}
    idle_for_other_reasons = [step(device_ms=100.0, device_parts_ms=parts, loader_ns=1 * MS)]
    assert by_part(waterfall(idle_for_other_reasons, times(100.0), on_gpu=True))["input_wait"] == 1


def test_parts_of_a_few_steps_are_scaled_to_the_mean_step() -> None:
    some = [step(device_parts_ms={"copy": 1.0, "forward": 9.0}, loader_ns=0)]
    shares = by_part(waterfall(some, times(20.0), on_gpu=True))
    assert shares["host_to_device"] == pytest.approx(2)


def test_without_events_inside_a_gpus_step_is_unattributed_and_says_so() -> None:
    assert by_part(waterfall(steps(3), times(50.0), on_gpu=True)) == {"unattributed": 50.0}
    assert device_parts(steps(3)) == ()


def test_a_step_with_an_evaluation_says_nothing_of_the_devices_parts() -> None:
    plain = step(device_parts_ms={"forward": 10.0})
    evaluated = step(device_parts_ms={"between": 900.0, "forward": 10.0}, evaluations=2)
    assert by_part(device_parts([plain, evaluated])) == {"forward": 10.0}
    assert device_parts([evaluated]) == ()
    assert by_part(waterfall([evaluated], times(10.0), on_gpu=True)) == {"unattributed": 10.0}


def test_parts_that_exceed_their_step_leave_nothing_over() -> None:
    some = [step(loader_ns=80 * MS, forward_ns=80 * MS, backward_ns=0, optimizer_ns=0)]
    shares = host_parts(some)
    assert by_part(shares)["other"] == 0
    assert sum(share.share for share in shares) == pytest.approx(1)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_nothing_has_no_parts(on_gpu: bool) -> None:
    assert host_parts([]) == device_parts([]) == ()
    assert waterfall([], times(1.0), on_gpu=on_gpu) == ()
    assert waterfall(steps(3), None, on_gpu=on_gpu) == ()


def test_steps_that_took_no_time_have_no_parts() -> None:
    nothing = [step(ended_ns=0), step(ended_ns=50 * MS, evaluation_ns=50 * MS)]
    assert host_parts(nothing) == ()
    assert waterfall(nothing, times(0.0), on_gpu=False) == ()
