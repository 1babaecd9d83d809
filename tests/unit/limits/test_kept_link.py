"""When a link is measured, and when it is kept: stands beside the other figures, and spoils none."""

import dataclasses
import json
from pathlib import Path

import pytest

from flatout.limits import obtain
from flatout.limits.obtain import Request, obtain_limits
from flatout.limits.peers import Peers
from flatout.limits.store import LimitsStore
from flatout.records.device import Device, DeviceProcess
from flatout.records.limits import DeviceLimits, Limits
from flatout.records.link import PairRate, RanksLink
from tests.unit.limits.test_store import CPU, GPU, OneSource, some_limits

SECOND = dataclasses.replace(GPU, index=1, uuid="GPU-2")
THIRD = dataclasses.replace(GPU, index=2, uuid="GPU-3")
WITH_LINK = Request(with_link=True)


class Machine:
    """Stands for the measuring children: counts what is asked of them, and answers as told."""

    def __init__(self, store: LimitsStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = store
        self.devices: list[str] = []
        self.links: list[int] = []
        self.reason = ""
        self.gpus: tuple[Device, ...] = (GPU, SECOND, THIRD)
        self.busy: tuple[DeviceProcess, ...] = ()
        monkeypatch.setattr("flatout.limits.disturbance._busy_seconds", lambda: 0.0)
        monkeypatch.setattr(obtain, "measure_devices", self._measure_devices)
        monkeypatch.setattr(obtain, "measure_link", self._measure_link)
        for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
            monkeypatch.delenv(name, raising=False)

    def _measure_devices(self, jobs: list, **_: object) -> list[DeviceLimits]:
        self.devices += [job.target.torch_device for job in jobs]
        whole = some_limits(obtain.torch_version())
        one = DeviceLimits(
            device=whole.device, measured=whole.measured, matmuls=(), clocks=whole.clocks, took_s=1.0
        )
        return [one] * len(jobs)

    def _measure_link(self, peers: Peers, disturbance: obtain.Disturbance, **_: object) -> RanksLink:
        self.links.append(len(peers.members))
        return RanksLink(
            backend=peers.backend,
            ranks=len(peers.members),
            members=peers.members,
            bus_bytes_per_s=None if self.reason else 4e11,
            pairs=(PairRate(source=0, target=1, bytes_per_s=3e11),),
            took_s=2.0,
            disturbed=disturbance.words(),
            unknown={"bus_bytes_per_s": self.reason} if self.reason else {},
        )

    def limits(self, request: Request = WITH_LINK) -> Limits:
        gpus = OneSource(*self.gpus)
        gpus.processes = self.busy
        return obtain_limits(request, sources=[gpus, OneSource(CPU)], store=self.store)[0]

    def kept(self) -> Limits | None:
        return self.store.load(GPU, obtain.torch_version())


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(LimitsStore(tmp_path), monkeypatch)


def test_a_link_is_measured_after_the_rest_kept_and_not_measured_again(machine: Machine) -> None:
    first = machine.limits()
    assert first.link is not None
    assert first.link.bus_bytes_per_s == 4e11
    assert first.took_s == 4.0  # the device, the CPU beside it, and the link
    again = machine.limits()
    assert again.from_cache
    assert again.link == first.link
    assert (machine.devices, machine.links) == (["cuda:0", "cpu"], [3])


def test_one_gpu_has_no_link_and_says_so(machine: Machine) -> None:
    machine.gpus = (GPU,)
    for _ in range(2):
        found = machine.limits()
        assert found.link is None
        assert "no other" in found.link_reason
    assert machine.links == []


def test_who_does_not_ask_does_not_keep_all_gpus_busy(machine: Machine) -> None:
    found = machine.limits(Request())
    assert (found.link, machine.links) == (None, [])
    assert "not asked for" in found.link_reason


def test_a_file_from_before_is_read_and_gets_its_link_without_the_rest(machine: Machine) -> None:
    path = machine.store.save(GPU, some_limits(obtain.torch_version()))
    old = json.loads(path.read_bytes())
    del old["link"], old["link_reason"]
    path.write_text(json.dumps(old))
    kept = machine.kept()
    assert kept is not None
    assert kept.link is None
    assert "not measured" in kept.link_reason
    found = machine.limits()
    assert found.link is not None
    assert (machine.devices, machine.links) == ([], [3])
    now = machine.kept()
    assert now is not None
    assert now.link == found.link
    assert not now.from_cache


def test_a_link_that_failed_costs_nothing_else_and_is_tried_again(machine: Machine) -> None:
    machine.reason = "rank 1 (GPU 1) died of signal 11"
    found = machine.limits()
    assert found.link is not None
    kept = machine.kept()
    assert kept is not None
    assert kept.link is None
    assert kept.link_reason == machine.reason
    machine.reason = ""
    assert machine.limits().link is not None
    assert (machine.devices, machine.links) == (["cuda:0", "cpu"], [3, 3])


def test_a_link_measured_beside_another_job_is_shown_and_not_kept(machine: Machine) -> None:
    machine.limits(Request())
    machine.busy = (DeviceProcess(pid=77, kind="compute", memory_bytes=1 << 33),)
    found = machine.limits()
    assert found.link is not None
    assert "PID 77" in found.link.disturbed
    kept = machine.kept()
    assert kept is not None
    assert kept.link is None
    machine.limits(dataclasses.replace(WITH_LINK, accept_disturbed=True))
    kept = machine.kept()
    assert kept is not None
    assert kept.link is not None


def test_fewer_ranks_are_measured_when_asked_for_and_do_not_replace_more(machine: Machine) -> None:
    machine.limits()
    two = machine.limits(dataclasses.replace(WITH_LINK, ranks=2)).link
    assert two is not None
    assert two.ranks == 2
    kept = machine.kept()
    assert kept is not None
    assert kept.link is not None
    assert kept.link.ranks == 3
    assert machine.links == [3, 2]


def test_gpus_that_were_hidden_the_last_time_are_measured_now(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    machine.limits()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    machine.limits()
    kept = machine.kept()
    assert kept is not None
    assert kept.link is not None
    assert kept.link.ranks == 3
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    machine.limits()
    assert machine.links == [2, 3]
