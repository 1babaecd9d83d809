"""Drivers' lists and this machine's processes are put together, and what is not certain is unknown."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flatout.hardware import processes as hardware_processes
from flatout.hardware.nvidia import sampling
from flatout.hardware.nvidia.source import NvidiaSource
from flatout.records.processes import HeldDevice, Holder, ProcessesHere
from flatout.runtime.memory_back import look_at_memory, memory_back
from flatout.runtime.who_holds import look_around
from tests.detached import Detached, kill, table_of, until
from tests.fakes import nvml
from tests.fakes.nvml import FakeNvml
from tests.fakes.process_tables import machine, seen

GIB = 1 << 30
# Holds a file that stands for the GPU's, as its forked worker does.
JOB = """
import sys, time
held = open(sys.argv[1], "w")
if os.fork() == 0:
    open("/proc/self/comm", "w").write("pt_data_worker")
    note("worker")
    time.sleep(600)
note("main")
while True: time.sleep(600)
"""
NOBODY = (1 << 22) - 7


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Detached]:
    monkeypatch.setattr(sampling, "_DEVICE_PATHS", (str(tmp_path / "nvidia"),))
    session = str(tmp_path / "a" / "order.json")
    started = Detached.python(tmp_path / "a", JOB, str(tmp_path / "nvidia0"), FLATOUT_SESSION=session)
    started.noted("main"), started.noted("worker")
    yield started
    started.end()


@pytest.fixture
def fake() -> FakeNvml:
    return FakeNvml()


def look(fake: FakeNvml, tmp_path: Path) -> ProcessesHere:
    found, _, _ = look_around([NvidiaSource(fake)], look=lambda: table_of(tmp_path), sleep=lambda _: None)
    return found


def holder(found: ProcessesHere, pid: int) -> Holder:
    [device] = found.devices
    assert device.processes is not None
    return next(one for one in device.processes if one.pid == pid)


def test_a_job_that_runs_kernels_is_running_and_its_memory_is_listed(
    job: Detached, fake: FakeNvml, tmp_path: Path
) -> None:
    fake.hold((job.pid, 10 * GIB))
    fake.active[0] = [(job.pid, 37, 1.0)]
    found = look(fake, tmp_path)
    one = holder(found, job.pid)
    assert (one.state, one.memory_bytes, one.active_share) == ("running", 10 * GIB, 0.37)
    assert (one.job_pid, one.kind) == (job.pid, "compute")
    assert one.job is not None
    assert one.job.startswith("train.py")
    assert one.user
    assert one.age_s is not None
    [its_job] = found.jobs
    assert (its_job.state, its_job.pid) == ("running", job.pid)
    assert [one.role for one in its_job.processes] == ["script", "loader worker"]
    assert its_job.processes[0].gpu_memory_bytes == 10 * GIB
    assert its_job.processes[1].gpu_memory_bytes == 0


def test_a_job_that_holds_memory_and_does_nothing_is_idle(
    job: Detached, fake: FakeNvml, tmp_path: Path
) -> None:
    fake.hold((job.pid, 10 * GIB))
    fake.active[0] = [(job.pid, 99, 60.0)]  # a minute ago
    one = holder(look(fake, tmp_path), job.pid)
    assert (one.state, one.active_share) == ("idle", 0.0)
    assert fake.calls["nvmlDeviceGetProcessUtilization"] == 1


@pytest.mark.parametrize(
    ("kernels", "holders", "state"), [(0, 2, "idle"), (40, 1, "running"), (40, 2, "unknown")]
)
def test_without_figures_for_each_process_only_what_is_certain_is_said(
    job: Detached, fake: FakeNvml, tmp_path: Path, kernels: int, holders: int, state: str
) -> None:
    fake.fail("nvmlDeviceGetProcessUtilization", nvml.NOT_SUPPORTED)
    fake.answer("nvmlDeviceGetUtilizationRates", nvml.SimpleNamespace(gpu=kernels, memory=0))
    fake.hold(*[(job.pid, GIB), (job.noted("worker"), GIB)][:holders])
    one = holder(look(fake, tmp_path), job.pid)
    assert fake.fired["nvmlDeviceGetProcessUtilization 3"]
    assert one.state == state
    assert "does not support" in one.unknown["active_share"]


def test_a_worker_whose_parent_was_killed_holds_the_gpu_as_an_orphan(
    job: Detached, fake: FakeNvml, tmp_path: Path
) -> None:
    worker = job.noted("worker")
    kill(job.pid)
    fake.hold((worker, 3 * GIB))
    fake.active[0] = [(worker, 50, 1.0)]
    found = look(fake, tmp_path)
    assert holder(found, worker).state == "orphan"
    assert "gone" in holder(found, worker).state_reason
    assert [one.state for one in found.jobs] == ["orphan"]


def test_memory_of_a_process_that_is_no_more_is_a_zombies(
    fake: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.hold((NOBODY, 5 * GIB))
    monkeypatch.setattr(hardware_processes, "_sees_every_process", lambda: True)
    one = holder(look(fake, tmp_path), NOBODY)
    assert (one.state, one.memory_bytes, one.job) == ("zombie", 5 * GIB, None)


def test_seen_from_a_container_an_unknown_pid_is_unknown_and_not_a_zombie(
    fake: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.hold((NOBODY, 5 * GIB))
    monkeypatch.setattr(hardware_processes, "_sees_every_process", lambda: False)
    one = holder(look(fake, tmp_path), NOBODY)
    assert one.state == "unknown"
    assert "namespace" in one.state_reason
    assert one.user is None
    assert one.unknown["user"]


def test_a_process_that_has_the_pid_and_not_the_gpu_is_not_taken_for_it(
    job: Detached, fake: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "_DEVICE_PATHS", (str(tmp_path / "another"),))
    fake.hold((job.pid, GIB))
    one = holder(look(fake, tmp_path), job.pid)
    assert (one.state, one.job, one.user) == ("unknown", None, None)


def test_a_driver_that_does_not_list_processes_is_said_to(fake: FakeNvml, tmp_path: Path) -> None:
    fake.fail("nvmlDeviceGetComputeRunningProcesses_v3", nvml.NO_PERMISSION)
    found = look(fake, tmp_path)
    [device] = found.devices
    assert device.processes is None
    assert device.unknown["processes"]
    assert fake.fired["nvmlDeviceGetComputeRunningProcesses_v3 4"]
    assert any("who holds it is not known" in note for note in found.notes)


def test_memory_that_nobody_listed_holds_is_counted(fake: FakeNvml, tmp_path: Path) -> None:
    fake.hold()
    device: HeldDevice = look(fake, tmp_path).devices[0]
    assert device.processes == ()
    assert device.unlisted_bytes == device.memory_used_bytes


def test_a_child_that_nobody_waited_for_is_a_zombie_of_its_job(
    fake: FakeNvml, tmp_path: Path, job: Detached
) -> None:
    worker = job.noted("worker")
    os.kill(worker, signal.SIGKILL)  # its parent never takes notice
    until(lambda: psutil.Process(worker).status() == psutil.STATUS_ZOMBIE, "the zombie")
    [found] = look(fake, tmp_path).jobs
    assert [(one.pid, one.state) for one in found.processes][1] == (worker, "zombie")
    assert str(job.pid) in found.processes[1].state_reason
    assert found.state == "idle", "the script itself is there"


def test_processes_that_may_not_be_looked_into_are_counted(fake: FakeNvml) -> None:
    table = machine(seen(300, 1, "train.py", user="grace", holds_torch=None, variables=None))
    found, _, _ = look_around([NvidiaSource(fake)], look=lambda: table, sleep=lambda _: None)
    assert found.jobs == ()
    assert found.notes == (
        "1 Python process of grace may train: this user may not look into what is not his own",
    )


# What comes back


def test_memory_that_came_back_is_counted(job: Detached, fake: FakeNvml, tmp_path: Path) -> None:
    source = NvidiaSource(fake)
    fake.hold((job.pid, 10 * GIB), (os.getpid(), GIB))
    before = look_at_memory([source])
    kill(job.pid)
    lists = iter([[(job.pid, 10 * GIB)], [(job.pid, 4 * GIB)], []])
    fake.hold(*next(lists))
    [back] = memory_back([source], before, {job.pid}, sleep=lambda _: fake.hold(*next(lists)))
    assert (back.held_before_bytes, back.held_after_bytes) == (10 * GIB, 0)
    assert next(lists, None) is None, "it looked until all was back"


def test_memory_that_does_not_come_back_is_said(
    job: Detached, fake: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware_processes, "_sees_every_process", lambda: True)
    monkeypatch.setattr("flatout.runtime.memory_back._WITHIN_S", 0.0)
    source = NvidiaSource(fake)
    fake.hold((job.pid, 10 * GIB))
    before = look_at_memory([source])
    kill(job.pid)
    until(lambda: not Path(f"/proc/{job.pid}").exists())
    [back] = memory_back([source], before, {job.pid})
    assert (back.held_before_bytes, back.held_after_bytes) == (10 * GIB, 10 * GIB)


def test_where_pids_are_of_another_namespace_what_came_back_is_unknown(fake: FakeNvml) -> None:
    source = NvidiaSource(fake)
    fake.hold((os.getppid(), GIB))  # it holds no GPU: the driver means another process
    before = look_at_memory([source])
    [back] = memory_back([source], before, {os.getppid()})
    assert (back.held_before_bytes, back.held_after_bytes) == (None, None)
    assert back.unknown["held_before_bytes"]
    assert back.used_before_bytes is not None


def test_a_job_that_held_nothing_has_nothing_to_give_back(fake: FakeNvml) -> None:
    source = NvidiaSource(fake)
    fake.hold()
    assert memory_back([source], look_at_memory([source]), {os.getpid()}) == ()
