"""Gathering a whole machine: every vendor asked, our own probes left out, nothing secret taken."""

import os
from collections.abc import Sequence

import pytest

from flatout.hardware import machine as gathering
from flatout.hardware.cpu import CpuSource
from flatout.hardware.machine import gather_machine, important_places, relevant_environment
from flatout.hardware.protocol import Discovery, Problem
from flatout.records.device import Device, DeviceProcess, DeviceSample

GPU = Device(index=0, vendor="nvidia", name="NVIDIA H200", uuid="GPU-1", memory_total_bytes=1 << 37)


class Busy:
    """A GPU on which everybody sits: this process, its children, a stranger."""

    vendor = "nvidia"

    def __init__(self) -> None:
        self.closed = False

    def discover(self) -> Discovery:
        return Discovery(
            devices=(GPU,), problems=(Problem(code="x", evidence="one is lost", fix="reset it"),)
        )

    def sample(self, devices: Sequence[Device]) -> list[DeviceSample]:
        import psutil

        children = psutil.Process().children()
        pids = [*(child.pid for child in children), os.getppid()]
        listed = tuple(DeviceProcess(pid=pid, memory_bytes=1 << 30) for pid in pids)
        return [DeviceSample(index=0, uuid="GPU-1", taken_at_unix_s=1.0, processes=listed) for _ in devices]

    def close(self) -> None:
        self.closed = True


def test_our_own_probes_are_not_listed_as_strangers() -> None:
    source = Busy()
    found = gather_machine(sources=[source, CpuSource()], environment={}, frameworks=("torch",))
    [sample, _cpu] = found.samples
    assert sample.processes is not None
    assert [process.pid for process in sample.processes] == [os.getppid()]
    assert source.closed


def test_a_vendors_problem_reaches_the_checks() -> None:
    found = gather_machine(sources=[Busy(), CpuSource()], environment={}, frameworks=())
    assert [(status.vendor, status.problem) for status in found.vendors] == [
        ("nvidia", "one is lost"),
        ("cpu", ""),
    ]


def test_sources_are_closed_and_probes_ended_when_something_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    real = gathering.Probe

    def remembered(*args: object, **kwargs: object) -> object:
        started.append(real(*args, **kwargs))  # type: ignore[arg-type]
        return started[-1]

    def broken(**_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(gathering, "Probe", remembered)
    monkeypatch.setattr(gathering, "read_host", broken)
    source = Busy()
    with pytest.raises(RuntimeError):
        gather_machine(sources=[source], environment={}, frameworks=("torch",))
    assert source.closed
    assert started[0]._child.returncode is not None


def test_only_what_changes_a_job_is_taken_from_the_environment() -> None:
    environment = {
        "CUDA_LAUNCH_BLOCKING": "1",
        "OMP_NUM_THREADS": "4",
        "PYTHONMALLOC": "debug",
        "TORCHINDUCTOR_CACHE_DIR": "/x",
        "HOME": "/root",
        "AWS_SECRET_ACCESS_KEY": "hush",
        "TORCH_HUB_TOKEN": "hush",
        "NCCL_PASSWORD": "hush",
    }
    assert set(relevant_environment(environment)) == {
        "CUDA_LAUNCH_BLOCKING",
        "OMP_NUM_THREADS",
        "PYTHONMALLOC",
        "TORCHINDUCTOR_CACHE_DIR",
    }


def test_the_compile_cache_is_looked_for_where_torch_puts_it() -> None:
    import tempfile

    places = {purpose: str(path) for purpose, path in important_places({})}
    assert places["compile cache"].startswith(tempfile.gettempdir() + "/torchinductor_")
    moved = dict(important_places({"TORCHINDUCTOR_CACHE_DIR": "/big/cache"}))
    assert str(moved["compile cache"]) == "/big/cache"
