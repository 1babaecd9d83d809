"""What the counters said counts for one GPU, while its steady steps ran, and for nothing else."""

from typing import Any

import pytest

from flatout.analyze.device_use import device_use
from flatout.analyze.steps import RankSteps
from flatout.records.device import DeviceSample
from tests.fakes.machines import H200_UUID, h200_sample
from tests.unit.analyze.events import rank_of, steps

ZERO = 1_760_000_000.0
BARE = H200_UUID.removeprefix("GPU-")  # as torch gives it, without the vendor's prefix


def sample(at_s: float, **changes: Any) -> DeviceSample:
    return h200_sample(taken_at_unix_s=ZERO + at_s, **changes)


@pytest.fixture
def rank() -> RankSteps:
    """Ten steps of 100 ms, from the zero of its clock."""
    return rank_of(steps(10), {"device_uuid": BARE, "unix_at_zero_s": ZERO})


def test_means_are_taken_over_the_chosen_steps_alone(rank: RankSteps) -> None:
    samples = [
        sample(0.1, sm_active_share=0.0),  # in the warm-up
        sample(0.3, sm_active_share=0.4, power_draw_mw=400_000, clock_compute_hz=1_500_000_000),
        sample(0.5, sm_active_share=0.8, power_draw_mw=600_001, clock_compute_hz=1_700_000_001),
        sample(1.5, sm_active_share=0.0),  # after the end
    ]
    use = device_use(rank, rank.steps[2:], samples)
    assert use.samples == 2
    assert use.sm_active_share == pytest.approx(0.6)
    assert (use.power_draw_mw, use.clock_compute_hz) == (500_000, 1_600_000_000)


def test_other_gpus_and_stale_samples_do_not_count(rank: RankSteps) -> None:
    samples = [
        sample(0.5, kernel_running_share=1.0),
        sample(0.5, kernel_running_share=0.0, uuid="GPU-another"),
        sample(0.5, kernel_running_share=0.0, uuid=None),
        sample(0.5, kernel_running_share=0.0, state="stale", state_reason="no answer"),
    ]
    use = device_use(rank, rank.steps, samples)
    assert (use.samples, use.kernel_running_share) == (1, 1.0)


def test_the_hottest_moment_and_every_reason_to_slow_down_are_kept(rank: RankSteps) -> None:
    samples = [
        sample(0.2, temperature_c=60, throttle_reasons=("power_cap", "idle")),
        sample(0.4, temperature_c=81, throttle_reasons=("thermal",)),
        sample(0.6, temperature_c=None, throttle_reasons=None),
    ]
    use = device_use(rank, rank.steps, samples)
    assert use.temperature_max_c == 81
    assert use.throttle_reasons == ("power_cap", "thermal")


def test_a_counter_that_never_answered_is_unknown_with_the_drivers_reason(rank: RankSteps) -> None:
    silent = sample(0.5, tensor_active_share=None, unknown={"tensor_active_share": "GPM needs Hopper"})
    use = device_use(rank, rank.steps, [silent])
    assert use.tensor_active_share is None
    assert use.unknown["tensor_active_share"] == "GPM needs Hopper"


@pytest.mark.parametrize(
    "about",
    [{}, {"device_uuid": BARE}, {"unix_at_zero_s": ZERO}, {"device_uuid": None, "unix_at_zero_s": ZERO}],
)
def test_without_a_gpu_or_a_clock_nothing_is_claimed(about: dict[str, Any]) -> None:
    rank = rank_of(steps(10), about)
    use = device_use(rank, rank.steps, [sample(0.5, kernel_running_share=1.0)])
    assert use.samples == 0
    assert use.kernel_running_share is None
    assert use.unknown["kernel_running_share"]


def test_no_steps_and_no_samples_are_no_use(rank: RankSteps) -> None:
    assert device_use(rank, (), [sample(0.5)]).samples == 0
    assert device_use(rank, rank.steps, []).samples == 0


def test_what_held_the_clock_down_once_in_a_hundred_samples_is_no_reason(rank: RankSteps) -> None:
    def held_down(count: int) -> tuple[str, ...] | None:
        samples = [
            sample(0.005 * n, throttle_reasons=("power_cap",) if n < count else ()) for n in range(100)
        ]
        return device_use(rank, rank.steps, samples).throttle_reasons

    assert (held_down(1), held_down(20)) == ((), ("power_cap",))
