"""A day of eight GPUs: what is kept of it takes no more memory in the evening than in the morning."""

import dataclasses
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest

from flatout.hardware.protocol import Discovery
from flatout.monitor.recording import Recorder
from flatout.monitor.source_watch import SourceWatch, device_key
from flatout.records.device import Device, DeviceSample, Vendor
from flatout.records.watching import Frame
from tests.fakes.watching import NOW, busy, gpu

GPUS = 8
HOUR_S = 3600


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Eight:
    """Eight GPUs by a clock of its own; one is away for an hour, and a MIG instance changes its name."""

    vendor: Vendor = "nvidia"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._samples = [busy(index) for index in range(GPUS)]

    def discover(self) -> Discovery:
        instance = dataclasses.replace(gpu(0), index=9, uuid=f"MIG-{int(self._clock.now // HOUR_S)}")
        return Discovery(devices=(*(gpu(index) for index in range(GPUS)), instance))

    def sample(self, devices: Sequence[Device], *, thoroughly: bool = True) -> list[DeviceSample]:
        now = self._clock.now
        found = []
        for device in devices:
            base = self._samples[device.index % GPUS]
            state = "down" if device.index == 3 and 5 * HOUR_S - 120 < now < 6 * HOUR_S + 120 else "up"
            found.append(
                dataclasses.replace(base, uuid=device.uuid, taken_at_unix_s=NOW + now, state=state)  # type: ignore[arg-type]
            )
        return found

    def close(self) -> None:
        pass


def live_a_day(folder: Path, every_s: float) -> tuple[list[int], SourceWatch]:
    clock = Clock()
    watch = SourceWatch(Eight(clock), every_s, thoroughly_every_s=5.0, now_unix_s=clock, monotonic=clock)
    memory: list[int] = []
    tracemalloc.start()
    try:
        with Recorder(folder / "day.jsonl.gz", most_bytes=1 << 20) as recorder:
            for hour in range(1, 25):
                while clock.now < hour * HOUR_S:
                    watch.look()
                    if clock.now % 600 < every_s:
                        devices, samples = zip(*watch.pairs(), strict=True)
                        recorder.add(
                            Frame(host="a", taken_at_unix_s=NOW + clock.now, devices=devices, samples=samples)
                        )
                    clock.now += every_s
                memory.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    return memory, watch


def assert_flat(folder: Path, every_s: float) -> None:
    memory, watch = live_a_day(folder, every_s)
    # Python itself keeps up to 2000 small tuples of each size for later.
    assert max(memory[2:]) < memory[2] + 400_000
    assert memory[-1] < 8 << 20
    assert len(watch.histories) == GPUS + 1
    curve = watch.histories[device_key(gpu(3))].curve(
        "power_draw_mw", 24.0 * HOUR_S, 24, until_unix_s=NOW + 24 * HOUR_S
    )
    assert [number for number, part in enumerate(curve) if part is None] == [5]
    assert sum(file.stat().st_size for file in folder.iterdir()) < 1.2 * (1 << 20)


def test_memory_is_flat_and_files_are_bounded_over_a_day(tmp_path: Path) -> None:
    assert_flat(tmp_path, 30.0)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_memory_is_flat_and_files_are_bounded_over_a_day_of_many_samples(tmp_path: Path) -> None:
    # More samples than the finest ring has places for.
    assert_flat(tmp_path, 5.0)
