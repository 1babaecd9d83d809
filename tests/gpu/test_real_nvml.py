"""NVML's answers on a real GPU, against torch's."""

import os
import time
import warnings
from collections.abc import Iterator

import pytest
import torch

from flatout.hardware.catalogue import rated_for
from flatout.hardware.nvidia.source import NvidiaSource
from flatout.hardware.visible import visible_cuda_devices
from flatout.records.device import Device


@pytest.fixture
def source() -> Iterator[NvidiaSource]:
    source = NvidiaSource()
    yield source
    source.close()


@pytest.fixture
def device(source: NvidiaSource) -> Device:
    return source.discover().devices[0]


def test_identity_agrees_with_torch(device: Device) -> None:
    properties = torch.cuda.get_device_properties(0)
    assert device.name == properties.name
    assert device.uuid == f"GPU-{properties.uuid}"
    assert device.compute_capability == f"{properties.major}.{properties.minor}"
    assert device.memory_total_bytes == pytest.approx(properties.total_memory, rel=0.02)


def test_the_first_visible_device_is_torchs_first(source: NvidiaSource) -> None:
    seen = visible_cuda_devices(source.discover().devices, os.environ).devices
    assert seen is not None
    assert seen[0].uuid == f"GPU-{torch.cuda.get_device_properties(0).uuid}"


def test_the_catalogue_knows_the_card(device: Device) -> None:
    rated = rated_for(device)
    assert rated is not None
    assert rated.compute_capability == device.compute_capability


def test_our_own_process_is_listed_with_its_memory(source: NvidiaSource, device: Device) -> None:
    held = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    [sample] = source.sample([device])
    del held
    assert sample.processes is not None
    own = next(process for process in sample.processes if process.pid == os.getpid())
    assert own.memory_bytes is not None
    assert own.memory_bytes > 1 << 30
    assert own.name is not None
    assert own.kind == "compute"


def test_tensor_activity_is_high_in_products_and_low_in_copies(source: NvidiaSource, device: Device) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("GPM counters begin with Hopper")

    def during(work: object, seconds: float = 1.0) -> float:
        end = time.monotonic() + seconds
        source.sample([device])
        while time.monotonic() < end:
            for _ in range(20):
                work()  # type: ignore[operator]
            torch.cuda.synchronize()
        [sample] = source.sample([device])
        assert sample.tensor_active_share is not None, sample.unknown
        return sample.tensor_active_share

    square = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    large, other = torch.randn(2, 1 << 28, device="cuda")
    time.sleep(0.5)
    in_products = during(lambda: square @ square)
    time.sleep(0.5)
    during(lambda: other.copy_(large), seconds=0.5)  # the counters' window lags behind
    in_copies = during(lambda: other.copy_(large))
    assert in_products > 0.5
    assert in_copies < 0.1


def test_energy_and_power_rise_under_load(source: NvidiaSource, device: Device) -> None:
    [before] = source.sample([device])
    square = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        for _ in range(20):
            square @ square
        torch.cuda.synchronize()
    [after] = source.sample([device])
    assert after.energy_total_mj is not None
    assert before.energy_total_mj is not None
    joules = (after.energy_total_mj - before.energy_total_mj) / 1000
    assert joules > 50
    assert after.power_draw_mw is not None
    assert before.power_draw_mw is not None
    assert after.power_draw_mw > before.power_draw_mw


def test_sampling_leaves_no_memory_behind(source: NvidiaSource, device: Device) -> None:
    import psutil

    for _ in range(50):
        source.sample([device])
    before = psutil.Process().memory_info().rss
    for _ in range(500):
        source.sample([device])
    assert psutil.Process().memory_info().rss - before < 4 << 20


def test_a_forked_child_reads_the_gpu(source: NvidiaSource, device: Device) -> None:
    source.sample([device])
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:  # pragma: no cover - another process
        os.write(writer, source.sample([device])[0].state.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert pipe.read() == "up"
    os.waitpid(child, 0)
