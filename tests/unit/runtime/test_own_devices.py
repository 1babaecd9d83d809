"""A job's own GPUs are found by what its ranks say, and sampled; jobs on the CPU ask no driver."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flatout.runtime.following import Followed, Life
from flatout.runtime.own_devices import OwnDevices
from tests.fakes.training_devices import H200_UUID, SECOND_UUID, TwoBusyGpus
from tests.unit.analyze.events import training, write_rank


def ranks_of(place: Path, *abouts: dict[str, Any], pid: int = 100) -> list[Followed]:
    for rank, about in enumerate(abouts):
        write_rank(place, training(3), about, name=f"{rank}-{pid + rank}")
    life = Life(place)
    life.look()
    return life.ranks()


def on_gpu(index: int = 0, uuid: str | None = None) -> dict[str, Any]:
    return {"device": f"cuda:{index}", "device_uuid": uuid}


def test_a_device_is_known_by_the_uuid_that_torch_tells(tmp_path: Path) -> None:
    own = OwnDevices([TwoBusyGpus()])
    own.look(ranks_of(tmp_path, on_gpu(0, SECOND_UUID.removeprefix("GPU-"))))
    assert [device.uuid for device in own.devices] == [SECOND_UUID]


def test_ranks_have_a_device_each_and_one_that_is_shared_counts_once(tmp_path: Path) -> None:
    own = OwnDevices([TwoBusyGpus()])
    uuids = (H200_UUID, SECOND_UUID, SECOND_UUID)
    own.look(ranks_of(tmp_path, *(on_gpu(0, uuid.removeprefix("GPU-")) for uuid in uuids)))
    assert {device.uuid for device in own.devices} == {H200_UUID, SECOND_UUID}


def test_a_torch_without_uuids_is_read_with_the_ranks_own_environment(tmp_path: Path) -> None:
    sleeps = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    rank = subprocess.Popen(sleeps, env={"CUDA_VISIBLE_DEVICES": "1"}, stdout=subprocess.PIPE)
    try:
        assert rank.stdout is not None
        rank.stdout.readline()
        own = OwnDevices([TwoBusyGpus()])
        own.look(ranks_of(tmp_path, on_gpu(0), pid=rank.pid))
        assert [device.uuid for device in own.devices] == [SECOND_UUID]
    finally:
        rank.kill()
        rank.communicate()


def test_energy_clock_limits_and_idle_time_are_of_its_own_devices_alone(tmp_path: Path) -> None:
    gpus = TwoBusyGpus(throttle_reasons=("power_cap",), clock_compute_hz=990_000_000)
    own = OwnDevices([gpus])
    own.look(ranks_of(tmp_path, on_gpu(0, H200_UUID.removeprefix("GPU-"))))
    for _ in range(11):
        own.sample()
    drawn = own.energy()
    assert drawn.joules == pytest.approx(5000.0)
    assert drawn.source == "counter"
    assert own.throttling().given_s == {"power_cap": pytest.approx(10.0)}
    assert own.idle_s == pytest.approx(2.5)
    price = own.price()
    assert price.usd_per_gpu_hour is not None
    assert price.usd_per_gpu_hour > 0
    own.close()
    assert gpus.is_closed


def test_your_own_prices_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = OwnDevices([TwoBusyGpus()])
    own.look(ranks_of(tmp_path / "job", on_gpu(0, H200_UUID.removeprefix("GPU-"))))
    prices = tmp_path / "prices.toml"
    monkeypatch.setenv("FLATOUT_PRICES", str(prices))
    prices.write_text(
        'as_of = 2026-01-01\n[[price]]\ngpu = "h200-sxm"\nusd_per_gpu_hour = 1.5\nprovider = "us"\n'
    )
    assert own.price().usd_per_gpu_hour == 1.5
    prices.write_text("as_of = nonsense")
    broken = own.price()
    assert broken.usd_per_gpu_hour is None
    assert "cannot be read" in broken.unknown["usd_per_gpu_hour"]


def test_a_job_on_the_cpu_asks_no_driver(tmp_path: Path) -> None:
    gpus = TwoBusyGpus()
    own = OwnDevices([gpus])
    own.look(ranks_of(tmp_path, {"device": "cpu"}))
    own.sample()
    assert own.devices == ()
    assert own.reason == "it trains on the CPU"
    assert gpus.looks == 0
    assert own.price().unknown["usd_per_gpu_hour"] == "it trains on the CPU"


def test_a_device_that_is_not_here_is_not_made_up(tmp_path: Path) -> None:
    own = OwnDevices([TwoBusyGpus()])
    own.look(ranks_of(tmp_path, on_gpu(7)))
    assert own.devices == ()
    assert "cuda:7" in own.reason
