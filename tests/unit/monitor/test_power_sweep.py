"""Caps under a running job: the least energy within the bound, and limits back, whatever happens midway."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flatout.hardware.nvidia.power import NvidiaPowerControl
from flatout.hardware.nvidia.source import NvidiaSource
from flatout.hardware.power_limits import PowerControls, PowerRefused
from flatout.monitor.power.claims import read_claims
from flatout.monitor.power.custody import PowerCustody
from flatout.monitor.power.jobs import chosen
from flatout.monitor.power.measuring import Measurer, Watched
from flatout.monitor.power.restoring import restore_all
from flatout.monitor.power.sweeping import Sweep, SweepWish, measured_only
from flatout.records.device import Device, DeviceSample, Vendor
from flatout.records.errors import CallerMistake
from flatout.records.live import STEP_BUCKETS_S, LiveJob, LiveTotals, StepTimes
from flatout.records.power import PowerSweep
from tests.fakes.machines import h200_sample
from tests.fakes.nvml import GPU_IS_LOST, NO_PERMISSION, NOT_SUPPORTED
from tests.fakes.nvml_with_limits import NvmlWithLimits

SET = "nvmlDeviceSetPowerManagementLimit"
FOUND_MW = 690_000
QUICK = SweepWish(settle_s=0.02, window_s=0.25)


class _WithoutWatchdog(PowerCustody):
    """The watchdog is shown elsewhere; here nobody is killed."""

    def _ensure_watchdog(self) -> None:
        return


class Bench:
    """A machine with two GPUs, a job on both, and what a sweep needs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.machine = NvmlWithLimits(folder / "nvml.json", gpus=2)
        for gpu in range(2):
            self.machine.set_by_others(FOUND_MW, gpu)
        # Over windows as short as these, a counter says more about the test's own pauses than about power.
        self.without_counter()
        self.controls = PowerControls([NvidiaPowerControl(self.machine)])
        self.source = NvidiaSource(self.machine)
        self.devices: tuple[Device, ...] = self.source.discover().devices
        self.alive = True
        self.tells_steps = True
        self._steps, self._sum_s, self._at_s = 0.0, 0.0, time.monotonic()
        self.looks = 0
        self.midway: Callable[[], None] = lambda: None

    def without_counter(self) -> None:
        self.machine.plant("nvmlDeviceGetTotalEnergyConsumption", NOT_SUPPORTED)

    def live(self) -> LiveJob | None:
        if not self.tells_steps:
            return None
        step_s, now_s = 0.002 / self.machine.pace(), time.monotonic()
        self._steps += (now_s - self._at_s) / step_s
        self._sum_s += now_s - self._at_s
        self._at_s = now_s
        counts = (int(self._steps), *(0,) * len(STEP_BUCKETS_S))
        steps = StepTimes(counts=counts, sum_s=self._sum_s)
        return LiveJob(
            run="r",
            name="train.py",
            run_folder="/r",
            host="h",
            pid=1,
            user="u",
            state="training",
            started_at_unix_s=0.0,
            written_at_unix_s=0.0,
            totals=LiveTotals(steps=steps, samples=32 * int(self._steps)),
        )

    def is_alive(self) -> bool:
        self.looks += 1
        self.midway()
        return self.alive

    def sweep(self, wish: SweepWish = QUICK) -> tuple[PowerSweep, PowerCustody]:
        job = Watched(name="train.py", devices=self.devices, live=self.live, is_alive=self.is_alive)
        measurer = Measurer(job, self.source, look_s=0.02)
        with _WithoutWatchdog(self.controls, folder=self.folder / "claims") as custody:
            found = Sweep(job, measurer, custody, wish).run(())
        return dataclasses.replace(found, restored=custody.restored), custody

    def limits(self) -> list[int]:
        return [self.machine.limit_mw(gpu) for gpu in range(2)]

    def tried(self, count: int) -> bool:
        return len(self.machine.sets()) >= 2 + 2 * count


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize("tells_steps", [True, False])
def test_finds_the_least_energy_within_the_bound_and_puts_limits_back(
    bench: Bench, tells_steps: bool
) -> None:
    bench.tells_steps = tells_steps
    found, _ = bench.sweep()
    assert found.pace_source == ("steps" if tells_steps else "memory traffic")
    # The fake's job wants 650 W, and hardly slows down to three quarters of that.
    assert found.best_mw is not None
    assert 480_000 <= found.best_mw <= 625_000
    best = next(point for point in found.points if point.cap_mw == found.best_mw)
    assert (best.slowdown or 0.0) <= 0.02
    assert (best.energy_ratio or 1.0) < 0.99
    assert any((point.slowdown or 0.0) > 0.02 for point in found.points)  # it went on until it was too slow
    assert all(point.cap_mw > 300_000 for point in found.points)  # and not much further
    assert (best.joules_per_step is not None) == tells_steps
    assert bench.limits() == [FOUND_MW, FOUND_MW]
    assert not found.applied
    assert [one.outcome for one in found.restored] == ["as found already"] * 2


def test_two_gpus_count_for_the_energy_of_a_step(bench: Bench) -> None:
    found, _ = bench.sweep(dataclasses.replace(QUICK, caps_mw=(600_000,)))
    base = found.points[0]
    assert base.step_s is not None
    assert base.joules_per_step == pytest.approx(2 * 650 * base.step_s, rel=0.3)
    assert base.samples_per_joule == pytest.approx(32 / base.joules_per_step, rel=0.01)


def test_without_permission_joules_are_told_and_what_to_type(bench: Bench) -> None:
    bench.machine.plant(SET, NO_PERMISSION)
    with pytest.raises(PowerRefused) as refused:
        bench.sweep()
    job = Watched(name="train.py", devices=bench.devices, live=bench.live, is_alive=bench.is_alive)
    found = measured_only(
        job, Measurer(job, bench.source, look_s=0.02), QUICK, bench.controls, (), refused.value
    )
    assert not found.permitted
    assert found.points[0].joules_per_step is not None
    assert found.points[0].samples_per_joule is not None
    assert bench.machine.sets() == []
    assert read_claims(bench.folder / "claims") == ([], [])


def test_permission_that_goes_midway_ends_the_sweep_and_leaves_notes(bench: Bench) -> None:
    bench.machine.plant(SET, NO_PERMISSION, after_sets=4)
    found, _ = bench.sweep()
    assert "may not set it" in found.notes[0]
    assert found.points[-1].outcome == "refused"
    assert {one.outcome for one in found.restored} == {"failed"}
    bench.machine.heal_file()
    bench.without_counter()
    outcomes, _ = restore_all(bench.folder / "claims", bench.controls)
    assert {one.outcome for one in outcomes} == {"restored"}
    assert bench.limits() == [FOUND_MW, FOUND_MW]


def test_a_gpu_lost_midway_leaves_the_other_restored(bench: Bench) -> None:
    def lose() -> None:
        if bench.tried(1):
            bench.machine.plant("*", GPU_IS_LOST, gpu=1)

    bench.midway = lose
    found, _ = bench.sweep()
    assert found.ended_early
    assert found.notes[0] == f"the sweep ended early: {found.ended_early}"
    assert bench.machine.limit_mw(0) == FOUND_MW
    assert [one.outcome for one in found.restored] == ["restored", "failed"]
    bench.machine.heal_file()
    bench.without_counter()
    restore_all(bench.folder / "claims", bench.controls)
    assert bench.limits() == [FOUND_MW, FOUND_MW]


def test_somebody_else_midway_ends_the_sweep_and_keeps_theirs(bench: Bench) -> None:
    def others() -> None:
        if bench.tried(1):
            bench.machine.set_by_others(444_000, 0)

    bench.midway = others
    found, _ = bench.sweep()
    assert "somebody else set the power limit to 444 W" in found.notes[0]
    assert len(found.points) == 1  # what was measured under theirs is no measurement of ours
    assert bench.limits() == [444_000, FOUND_MW]
    assert [one.outcome for one in found.restored] == ["changed by others", "restored"]


def test_a_job_that_ends_midway_ends_the_sweep(bench: Bench) -> None:
    def end() -> None:
        bench.alive = not bench.tried(2)

    bench.midway = end
    found, _ = bench.sweep()
    assert "train.py has ended" in found.notes[0]
    assert bench.limits() == [FOUND_MW, FOUND_MW]


def test_caps_beyond_what_a_gpu_takes_become_the_nearest(bench: Bench) -> None:
    bench.sweep(dataclasses.replace(QUICK, caps_mw=(100_000, 900_000)))
    assert all(200_000 <= limit <= FOUND_MW for _, limit in bench.machine.sets())
    assert bench.limits() == [FOUND_MW, FOUND_MW]


def test_a_cap_that_is_kept_is_put_back_to_what_was_before_the_first(bench: Bench) -> None:
    keep = dataclasses.replace(QUICK, caps_mw=(520_000,), apply=True)
    found, _ = bench.sweep(keep)
    assert found.applied
    assert bench.limits() == [520_000, 520_000]
    # A sweep on top of it puts back the cap that it found, and --apply goes on from there.
    bench.sweep(dataclasses.replace(QUICK, caps_mw=(505_000,)))
    assert bench.limits() == [520_000, 520_000]
    bench.sweep(dataclasses.replace(keep, caps_mw=(500_000,)))
    assert bench.limits() == [500_000, 500_000]
    outcomes, _ = restore_all(bench.folder / "claims", bench.controls, purpose="kept")
    assert [one.outcome for one in outcomes] == ["restored", "restored"]
    assert bench.limits() == [FOUND_MW, FOUND_MW]


def test_a_job_whose_pace_is_unknown_is_not_capped(bench: Bench) -> None:
    bench.tells_steps = False
    bench.machine.removed.add("nvmlGpmQueryDeviceSupport")
    found, _ = bench.sweep()
    assert found.best_mw is None
    assert "no caps were tried" in found.notes[0]
    assert all(limit == FOUND_MW for _, limit in bench.machine.sets())


def test_a_number_means_one_vendors_gpu() -> None:
    def pair(vendor: Vendor, index: int) -> tuple[Device, DeviceSample]:
        return Device(index=index, vendor=vendor, name=vendor, uuid=f"{vendor}{index}"), h200_sample()

    pairs = [pair("nvidia", 0), pair("amd", 0), pair("amd", 1), pair("intel", 0)]
    taken = [[device.uuid for device, _ in chosen(pairs, wanted)] for wanted in ((0,), (1, 0), ())]
    assert taken == [["nvidia0"], ["amd0", "amd1"], ["nvidia0", "amd0", "amd1", "intel0"]]
    with pytest.raises(CallerMistake, match="no GPU 7"):
        chosen(pairs, (0, 7))
