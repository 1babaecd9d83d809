"""Threads go to the cores next to the GPU and come back; where somebody has chosen cores, they stay."""

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flatout.levers import thread_affinity
from flatout.levers.job import JobFacts
from flatout.levers.lever import Refused
from flatout.levers.numa import cores_in, describe, node_of_gpu, nodes
from flatout.levers.thread_affinity import ThreadAffinity

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
ALL = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Two nodes: this machine's last core is the GPU's, the others are far away."""
    last = max(ALL)
    others = ",".join(str(core) for core in sorted(ALL - {last})) or "900"
    for number, cores in enumerate((others, str(last))):
        place = tmp_path / f"devices/system/node/node{number}"
        place.mkdir(parents=True)
        (place / "cpulist").write_text(f"{cores}\n")
    device = tmp_path / "bus/pci/devices/0000:3b:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    return tmp_path


def scene(device: str = "cuda", bus: int = 0x3B) -> Any:
    properties = SimpleNamespace(pci_domain_id=0, pci_bus_id=bus, pci_device_id=0)
    cuda = SimpleNamespace(get_device_properties=lambda _: properties)
    return SimpleNamespace(torch=SimpleNamespace(cuda=cuda), device=SimpleNamespace(type=device))


@pytest.fixture
def lever(sysfs: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(ThreadAffinity, "sysfs", sysfs)
    monkeypatch.setattr(thread_affinity.os, "cpu_count", lambda: len(ALL))
    yield lambda **more: ThreadAffinity(scene(**more), {})
    os.sched_setaffinity(0, ALL)


def test_lists_of_cores() -> None:
    assert cores_in("0-3,8,10-11") == {0, 1, 2, 3, 8, 10, 11}
    assert cores_in("") == frozenset()
    assert cores_in("what") == frozenset()


def test_nodes_and_the_gpus_own(sysfs: Path) -> None:
    assert nodes(sysfs)[1] == {max(ALL)}
    torch = scene().torch
    assert node_of_gpu(torch, 0, sysfs) == 1
    assert node_of_gpu(scene(bus=7).torch, 0, sysfs) is None
    (sysfs / "bus/pci/devices/0000:3b:00.0/numa_node").write_text("-1\n")
    assert node_of_gpu(torch, 0, sysfs) is None
    known = describe(torch, SimpleNamespace(type="cuda"), sysfs)
    assert known == {"nodes": 2, "of_gpu": None, "allowed": len(ALL), "cores": os.cpu_count()}
    assert describe(torch, SimpleNamespace(type="cpu"), sysfs) is None
    assert nodes(sysfs / "nothing") == {}


def test_every_thread_is_moved_and_comes_back(lever: Any) -> None:
    go, seen = threading.Event(), {}

    def work(name: str) -> None:
        go.wait(60)
        seen[name] = os.sched_getaffinity(0)

    before = threading.Thread(target=work, args=("before",))
    before.start()
    one = lever()
    one.apply()
    assert os.sched_getaffinity(0) == {max(ALL)}
    assert os.sched_getaffinity(before.native_id) == {max(ALL)}
    since = threading.Thread(target=work, args=("since",))
    since.start()
    assert os.sched_getaffinity(since.native_id) == {max(ALL)}
    one.undo()
    go.set()
    before.join()
    since.join()
    assert os.sched_getaffinity(0) == ALL
    assert seen == {"before": ALL, "since": ALL}


def test_workers_that_start_while_it_is_on_are_there_too(lever: Any) -> None:
    one = lever()
    one.apply()
    try:
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.write(writer, repr(sorted(os.sched_getaffinity(0))).encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reader, 100).decode() == repr([max(ALL)])
    finally:
        one.undo()
        os.close(reader)
        os.close(writer)


def test_a_thread_that_somebody_has_moved_since_stays(lever: Any) -> None:
    if len(ALL) < 2:
        pytest.skip("needs two cores")
    one = lever()
    one.apply()
    theirs = {min(ALL)}
    os.sched_setaffinity(0, theirs)
    one.undo()
    assert os.sched_getaffinity(0) == theirs


def test_cores_that_somebody_chose_are_left(lever: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_affinity.os, "cpu_count", lambda: len(ALL) + 4)
    with pytest.raises(Refused, match="chosen its cores already"):
        lever().apply()
    assert os.sched_getaffinity(0) == ALL


def test_refused_without_a_gpu_or_a_choice(lever: Any, sysfs: Path) -> None:
    with pytest.raises(Refused, match="not train on a GPU"):
        lever(device="cpu").apply()
    with pytest.raises(Refused, match="to which NUMA node"):
        lever(bus=1).apply()
    (sysfs / "devices/system/node/node0/cpulist").write_text("\n")
    with pytest.raises(Refused, match="one NUMA node"):
        lever().apply()


@pytest.mark.parametrize(
    ("device", "numa", "says"),
    [
        ("cpu", None, "not train on a GPU"),
        ("cuda:0", None, "does not say"),
        ("cuda:0", {"nodes": 1, "of_gpu": 0, "allowed": 8, "cores": 8}, "one NUMA node"),
        ("cuda:0", {"nodes": 2, "of_gpu": None, "allowed": 8, "cores": 8}, "to which NUMA node"),
        ("cuda:0", {"nodes": 2, "of_gpu": 1, "allowed": 4, "cores": 8}, "4 of 8"),
        ("cuda:0", {"nodes": 2, "of_gpu": 1, "allowed": 8, "cores": 8}, ""),
    ],
)
def test_what_the_baseline_tells(device: str, numa: Any, says: str) -> None:
    reason = ThreadAffinity.check(JobFacts(device=device, habits={"numa": numa}))
    assert (says in reason) if says else not reason
