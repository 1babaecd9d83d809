"""The sampler: never blocks, survives what drivers do, and reads dear things seldom."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from flatout.hardware.cpu import CpuSource
from flatout.hardware.nvidia.source import NvidiaSource
from flatout.hardware.protocol import Discovery, Problem
from flatout.monitor.jobs_watch import JobsWatch
from flatout.monitor.sampling import MachineSampler, jobs_pause_s
from flatout.monitor.source_watch import REDISCOVER_LOST_S, SourceWatch
from flatout.records.device import Device, DeviceSample, Vendor
from flatout.records.live import LiveJob
from flatout.records.processes import JobHere, ProcessesHere
from flatout.records.watching import Frame
from flatout.runtime.process_table import Table
from tests.fakes.machines import h200, h200_sample
from tests.fakes.nvml import GPU_IS_LOST, UNKNOWN, FakeNvml
from tests.fakes.watching import job_here, live_job


def sees(sampler: MachineSampler, what: Callable[[Frame], bool], within_s: float = 60.0) -> Frame:
    until = time.monotonic() + within_s
    while not what(frame := sampler.frame()):
        assert time.monotonic() < until, frame
        time.sleep(0.01)
    return frame


def sampler_of(*sources: object, every_s: float = 0.02) -> MachineSampler:
    return MachineSampler(list(sources), every_s, jobs=JobsWatch(lambda: Table(())))  # type: ignore[arg-type]


def states(frame: Frame) -> list[str]:
    return [sample.state for sample in frame.samples]


@pytest.fixture
def blocked() -> Iterator[list[threading.Event]]:
    events: list[threading.Event] = []
    yield events
    for event in events:
        event.set()


def test_frames_hold_every_vendors_devices_with_their_samples_and_the_host() -> None:
    with sampler_of(NvidiaSource(FakeNvml(gpus=2)), CpuSource()) as sampler:
        assert sampler.wait_until_complete(60.0)
        frame = sees(sampler, lambda frame: frame.machine.memory_total_bytes is not None)
    assert [device.vendor for device in frame.devices] == ["nvidia", "nvidia", "cpu"]
    assert [sample.uuid for sample in frame.samples] == [device.uuid for device in frame.devices]
    assert states(frame) == ["up", "up", "up"]
    assert {status.vendor for status in frame.vendors} == {"nvidia", "cpu"}


def test_before_the_first_look_there_is_an_empty_frame() -> None:
    sampler = sampler_of(NvidiaSource(FakeNvml()))
    assert sampler.frame().devices == ()
    assert sampler.history("GPU-1").curve("temperature_c", 60.0, 3) == [None] * 3


def test_one_lost_gpu_is_down_and_the_others_go_on() -> None:
    nvml = FakeNvml(gpus=3)
    with sampler_of(NvidiaSource(nvml)) as sampler:
        sees(sampler, lambda frame: states(frame) == ["up"] * 3)
        nvml.lose(1)
        frame = sees(sampler, lambda frame: states(frame) == ["up", "down", "up"])
        at = frame.samples[2].taken_at_unix_s
        sees(sampler, lambda frame: frame.samples[2].taken_at_unix_s > at)
        nvml.heal_all()
        sees(sampler, lambda frame: states(frame) == ["up"] * 3)
    assert any(str(GPU_IS_LOST) in fault for fault in nvml.fired)


def test_a_blocked_driver_makes_its_devices_stale_and_holds_up_nobody(blocked: list[threading.Event]) -> None:
    nvml = FakeNvml()
    nvidia = NvidiaSource(nvml, call_timeout_s=0.2)
    with sampler_of(nvidia, CpuSource()) as sampler:
        sees(sampler, lambda frame: states(frame) == ["up", "up"])
        blocked.append(nvml.block("nvmlDeviceGetUtilizationRates"))
        frame = sees(sampler, lambda frame: states(frame) == ["stale", "up"])
        at = frame.samples[1].taken_at_unix_s
        sees(sampler, lambda frame: frame.samples[1].taken_at_unix_s > at)
        blocked.pop().set()
        sees(sampler, lambda frame: states(frame) == ["up", "up"])
    assert nvml.fired["block nvmlDeviceGetUtilizationRates"]


class Stuck:
    """A source that has answered once, and then never again."""

    vendor: Vendor = "intel"

    def __init__(self, stuck: threading.Event) -> None:
        self._stuck = stuck
        self.samples = 0

    def discover(self) -> Discovery:
        return Discovery(devices=(h200(),))

    def sample(self, devices: Sequence[Device], *, thoroughly: bool = True) -> list[DeviceSample]:
        self.samples += 1
        if self.samples > 1:
            self._stuck.wait(60)
        return [h200_sample() for _ in devices]

    def close(self) -> None:
        pass


def test_a_source_that_never_comes_back_is_told_as_stale_and_left_behind(
    blocked: list[threading.Event],
) -> None:
    blocked.append(threading.Event())
    source, now = Stuck(blocked[0]), 0.0
    watch = SourceWatch(source, 0.01, thoroughly_every_s=5.0, monotonic=lambda: now)
    watch.look()
    thread = threading.Thread(target=watch.run, args=(threading.Event(),), daemon=True)
    thread.start()
    assert watch.pairs()[0][1].state == "up"
    now = 30.0
    [(_, sample)] = watch.pairs()
    assert sample.state == "stale"
    assert "30 s" in sample.state_reason


def test_after_a_driver_reload_the_devices_come_back() -> None:
    nvml = FakeNvml(gpus=2)
    with sampler_of(NvidiaSource(nvml)) as sampler:
        sees(sampler, lambda frame: states(frame) == ["up"] * 2)
        nvml.lose_all(UNKNOWN)
        sees(sampler, lambda frame: states(frame) == ["stale"] * 2)
        nvml.heal_all()
        sees(sampler, lambda frame: states(frame) == ["up"] * 2)
    assert len(nvml.init_pids) >= 2  # more, where it took us long to look


class Changing:
    """A source whose devices are what the test says."""

    vendor: Vendor = "nvidia"

    def __init__(self) -> None:
        self.found = Discovery(absent_reason="no driver")
        self.state = "up"
        self.discovered = 0
        self.thorough: list[bool] = []

    def discover(self) -> Discovery:
        self.discovered += 1
        return self.found

    def sample(self, devices: Sequence[Device], *, thoroughly: bool = True) -> list[DeviceSample]:
        self.thorough.append(thoroughly)
        return [h200_sample(uuid=device.uuid, state=self.state) for device in devices]

    def close(self) -> None:
        pass


def test_devices_that_appear_later_are_found_and_those_that_went_are_told_as_down() -> None:
    now = 0.0
    source = Changing()
    watch = SourceWatch(source, 1.0, thoroughly_every_s=5.0, monotonic=lambda: now)
    watch.look()
    assert watch.pairs() == ()
    assert watch.vendors()[0].absent_reason == "no driver"
    source.found, now = Discovery(devices=(h200(),)), 61.0
    watch.look()
    assert len(watch.pairs()) == 1
    problem = Problem(code="nvidia.driver_not_loaded", evidence="driver not loaded", fix="modprobe nvidia")
    source.found, source.state = Discovery(problems=(problem,)), "down"
    now += 61.0
    watch.look()
    [(_, sample)] = watch.pairs()
    assert sample.state == "down"
    assert watch.vendors()[0].problem == "driver not loaded"
    # Until it is back, it is looked for more often.
    before = source.discovered
    now += REDISCOVER_LOST_S
    watch.look()
    assert source.discovered == before + 1


def test_dear_fields_are_read_in_thorough_samples_alone() -> None:
    now = 0.0
    source = Changing()
    source.found = Discovery(devices=(h200(),))
    watch = SourceWatch(source, 1.0, thoroughly_every_s=5.0, monotonic=lambda: now)
    for _ in range(12):
        watch.look()
        now += 1.0
    assert source.thorough == ([True] + [False] * 4) * 2 + [True, False]


def test_histories_of_mig_instances_that_are_no_more_do_not_pile_up() -> None:
    now = 0.0
    source = Changing()
    watch = SourceWatch(source, 1.0, thoroughly_every_s=5.0, monotonic=lambda: now)
    for number in range(5):
        source.found = Discovery(devices=(h200(uuid=f"MIG-{number}"),))
        watch.look()
        now += 61.0
    assert list(watch.histories) == ["MIG-4"]


def test_a_source_that_takes_long_is_asked_less_often() -> None:
    now = 0.0

    class Slow(Changing):
        def sample(self, devices: Sequence[Device], *, thoroughly: bool = True) -> list[DeviceSample]:
            nonlocal now
            now += 0.3
            return super().sample(devices, thoroughly=thoroughly)

    source = Slow()
    source.found = Discovery(devices=(h200(),))
    watch = SourceWatch(source, 0.1, thoroughly_every_s=1e9, monotonic=lambda: now)
    waited: list[float] = []

    class Clock(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            nonlocal now
            now += timeout or 0.0
            waited.append(timeout or 0.0)
            return super().is_set()

        def is_set(self) -> bool:
            return len(waited) >= 5

    watch.run(Clock())
    assert waited[-1] == pytest.approx(2.7)


def test_threads_and_sources_are_gone_when_it_is_over() -> None:
    nvml = FakeNvml()
    before = set(threading.enumerate())  # also those that other tests have left in this process
    with sampler_of(NvidiaSource(nvml)) as sampler:
        sees(sampler, lambda frame: states(frame) == ["up"])
    since = set(threading.enumerate()) - before
    assert not [one for one in since if one.name.startswith("flatout-watch")]
    assert nvml.calls["nvmlShutdown"] == 1


def test_processes_are_looked_at_less_often_where_that_costs_more() -> None:
    assert [jobs_pause_s(5.0, cost_s) for cost_s in (0.002, 0.012, 0.5)] == pytest.approx([5.0, 20.0, 30.0])


def test_a_vendor_without_devices_is_left_in_peace_and_nobody_waits_for_it() -> None:
    source = Changing()
    watch = SourceWatch(source, 0.1, thoroughly_every_s=5.0)
    watch.look()
    assert watch.wait_for(2, 0.0)
    ended = threading.Event()
    thread = threading.Thread(target=watch.run, args=(ended,))
    thread.start()
    time.sleep(0.35)
    ended.set()
    thread.join()
    assert source.discovered == 1
    assert source.thorough == []


class Recorded(JobsWatch):
    """Sees a job where it sees a GPU."""

    def look(
        self, gpus: Callable[[], Sequence[tuple[Device, DeviceSample]]], ended: threading.Event
    ) -> ProcessesHere:
        found = (job_here(7, "train.py"),) if gpus() else ()
        ended.wait(0.01)
        return ProcessesHere(devices=(), jobs=found, sampled_s=1.0)


def test_the_first_look_is_over_when_jobs_were_seen_with_their_gpus_and_live_jobs_with_those(
    blocked: list[threading.Event],
) -> None:
    blocked.append(awake := threading.Event())

    class Waking(Changing):
        def discover(self) -> Discovery:
            awake.wait(60)
            return Discovery(devices=(h200(),))

    def live(jobs: Sequence[JobHere], _roots: object) -> list[LiveJob]:
        return [live_job(pid=job.pid) for job in jobs]

    # Between two looks of their own an hour passes: each must come because of what it waits for.
    with MachineSampler([Waking()], 0.02, 3600.0, jobs=Recorded(), look_for_live=live) as sampler:
        sees(sampler, lambda _frame: not sampler._answered)
        assert not sampler.wait_until_complete(0.1)
        assert (sampler.frame().jobs, sampler.frame().live_jobs) == ((), ())
        awake.set()
        assert sampler.wait_until_complete(60.0)
        frame = sampler.frame()
    assert [job.pid for job in frame.jobs] == [job.pid for job in frame.live_jobs] == [7]


def test_gpus_are_asked_after_the_first_pause_not_before_it() -> None:
    order: list[str] = []

    class Clock(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            order.append(f"{timeout:g} s")
            return False

    watch = JobsWatch(lambda: Table(()))
    for _ in range(2):
        watch.look(lambda: order.append("gpus") or [], Clock())  # type: ignore[func-returns-value]
    assert order == ["1 s", "gpus", "gpus"]


def test_a_machine_that_tells_nothing_of_its_cpu_keeps_nobody_waiting_and_may_tell_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flatout.monitor.sampling.HOST_EVERY_S", 0.02)
    told = threading.Event()

    def cpu_percent() -> float:
        if not told.is_set():
            raise FileNotFoundError("/proc/stat")
        return 50.0

    monkeypatch.setattr("flatout.monitor.sampling.psutil.cpu_percent", cpu_percent)
    with sampler_of() as sampler:
        assert sampler.wait_until_complete(60.0)
        assert sampler.frame().machine.cpu_share is None
        assert "FileNotFoundError" in sampler.frame().notes[0]
        told.set()
        frame = sees(sampler, lambda frame: frame.machine.cpu_share is not None)
    assert (frame.machine.cpu_share, frame.notes) == (0.5, ())


def test_an_error_that_nobody_reckoned_with_ends_one_look_and_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flatout.monitor.source_watch.REDISCOVER_LOST_S", 0.05)
    monkeypatch.setattr("flatout.monitor.sampling.LIVE_EVERY_S", 0.02)

    class Raising(Changing):
        broken = True

        def sample(self, devices: Sequence[Device], *, thoroughly: bool = True) -> list[DeviceSample]:
            if self.broken:
                raise KeyError("planted")
            return super().sample(devices, thoroughly=thoroughly)

    def live(_jobs: object, _roots: object) -> list[LiveJob]:
        if source.broken:
            raise RuntimeError("planted, too\nwith more")
        return []

    source = Raising()
    source.found = Discovery(devices=(h200(),))
    with MachineSampler([source], 0.02, jobs=Recorded(), look_for_live=live) as sampler:
        frame = sees(sampler, lambda frame: bool(frame.notes and frame.vendors[0].problem))
        assert frame.notes == ("live jobs cannot be seen: RuntimeError: planted, too",)
        assert "KeyError: 'planted'" in frame.vendors[0].problem
        failed = sampler.failures()
        assert (failed["nvidia"] > 0, failed["live jobs"] > 0, failed["processes"]) == (True, True, 0)
        source.broken = False
        frame = sees(sampler, lambda frame: states(frame) == ["up"] and not frame.notes)
        sees(sampler, lambda frame: not frame.vendors[0].problem)
