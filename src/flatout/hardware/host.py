"""The computer around the devices: what the operating system says, and what a container really allows."""

import contextlib
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

import psutil

from flatout.records.device import Vendor
from flatout.records.machine import Host, Place
from flatout.records.unknown import Readings

_NO_LIMIT = 1 << 60
_CPUFREQ = "sys/devices/system/cpu/cpu0/cpufreq"
# Controller -> names of the limit, of the use, and of the droppable part of it. "" is cgroup v2.
_MEMORY_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
_PCI_VENDORS: dict[str, Vendor] = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}
# PCI class 03xx is a display controller; 0x0380 and 0x1200 are how accelerators without a display appear.
_PCI_CLASSES = ("0x03", "0x12")


class _NotThere(Exception):
    """A fact that this system does not have; the message says why."""


def read_host(*, root: Path = Path("/"), places: tuple[tuple[str, Path], ...] = ()) -> Host:
    """Read the host. `root` stands for / in tests."""
    fields = Readings(tolerated=(_NotThere, OSError, psutil.Error, ValueError, AttributeError))
    fields.read("cpu_count", os.cpu_count)
    fields.read("cpu_affinity_count", lambda: len(os.sched_getaffinity(0)))
    fields.read("cpu_quota", lambda: cpu_quota(root))
    fields.read("cpu_governor", lambda: _text(root, f"{_CPUFREQ}/scaling_governor"))
    fields.read("cpu_frequency_driver", lambda: _text(root, f"{_CPUFREQ}/scaling_driver"))
    total_bytes = fields.read("memory_total_bytes", lambda: psutil.virtual_memory().total)
    fields.read("memory_available_bytes", lambda: psutil.virtual_memory().available)
    fields.read("memory_limit_bytes", lambda: memory_limit(root, total_bytes or _NO_LIMIT))
    fields.read("memory_limit_used_bytes", lambda: _memory_limit_used(root))
    fields.read("shm_total_bytes", lambda: shutil.disk_usage(_present(root / "dev/shm")).total)
    fields.read("shm_free_bytes", lambda: shutil.disk_usage(_present(root / "dev/shm")).free)
    fields.read("container", lambda: _in_container(root))
    fields.read("pci_gpu_vendors", lambda: pci_gpu_vendors(root))
    return Host(
        system=f"{platform.system()} {platform.release()}",
        python_version=platform.python_version(),
        places=tuple(read_place(purpose, path) for purpose, path in places),
        unknown=fields.unknown,
        **fields.values,
    )


def cores_allowed(host: Host) -> int:
    """How many cores this process may use."""
    allowed = [host.cpu_affinity_count or host.cpu_count or 1]
    if host.cpu_quota is not None:
        allowed.append(int(host.cpu_quota))
    return max(1, min(allowed))


def read_place(purpose: str, path: Path) -> Place:
    """How much room there is where `path` is or will be, and whether it can be written."""
    fields = Readings(tolerated=(OSError,))
    standing = next((parent for parent in (path, *path.parents) if _exists(parent)), path)
    fields.read("free_bytes", lambda: shutil.disk_usage(standing).free)
    fields.read("total_bytes", lambda: shutil.disk_usage(standing).total)
    fields.read("writable", lambda: os.access(standing, os.W_OK | os.X_OK))
    return Place(
        purpose=purpose,
        path=str(path),
        filesystem=_filesystem(_resolved(standing)),
        unknown=fields.unknown,
        **fields.values,
    )


def cpu_quota(root: Path = Path("/")) -> float:
    """CPUs that the control group allows, as a number such as 2.5."""
    found = []
    for folder in _cgroup_folders(root):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            quota, period = (folder / "cpu.max").read_text().split()
            found.append(int(quota) / int(period))  # "max" is no number, and no limit
    for folder in _cgroup_folders(root, "cpu"):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            quota_us = int((folder / "cpu.cfs_quota_us").read_text())
            found.append(quota_us / int((folder / "cpu.cfs_period_us").read_text()))
    allowed = [cpus for cpus in found if cpus > 0]
    if not allowed:
        raise _NotThere("no CPU limit is set")
    return min(allowed)


def available_memory_bytes(root: Path = Path("/")) -> int:
    """What this process can still take: of the machine, and of its control group where that is tighter."""
    available = psutil.virtual_memory().available
    with contextlib.suppress(_NotThere, OSError, ValueError):
        limit = memory_limit(root, psutil.virtual_memory().total)
        available = min(available, max(0, limit - _memory_limit_used(root)))
    return available


def memory_limit(root: Path, total_bytes: int) -> int:
    """Bytes that the control group allows, where that is less than the machine has."""
    tightest = _tightest_memory_group(root)
    if tightest is None or tightest[0] >= min(_NO_LIMIT, total_bytes):
        raise _NotThere("no memory limit is set")
    return tightest[0]


def _memory_limit_used(root: Path) -> int:
    """Bytes in use in the group whose limit holds, without the page cache that can be dropped."""
    tightest = _tightest_memory_group(root)
    if tightest is None:
        raise _NotThere("no memory limit is set")
    _, folder, (_, used_name, cache_name) = tightest
    used = int((folder / used_name).read_text())
    with contextlib.suppress(OSError, ValueError):
        lines = (folder / "memory.stat").read_text().splitlines()
        statistics = dict(line.split(maxsplit=1) for line in lines)
        used -= int(statistics.get(cache_name, 0))
    return max(0, used)


def _tightest_memory_group(root: Path) -> tuple[int, Path, tuple[str, str, str]] | None:
    found = []
    for controller, names in _MEMORY_FILES.items():
        for folder in _cgroup_folders(root, controller):
            with contextlib.suppress(OSError, ValueError):
                limit = int((folder / names[0]).read_text())
                if limit >= 0:
                    found.append((limit, folder, names))
    return min(found, default=None, key=lambda group: group[0])


def _cgroup_folders(root: Path, controller: str = "") -> list[Path]:
    """This process's group and its parents: the tightest limit on the way up holds. "" is cgroup v2."""
    base = root / "sys/fs/cgroup" / controller
    own = "/"
    with contextlib.suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = (*line.split(":", maxsplit=2), "", "")[:3]
            if path and controller in controllers.split(","):
                own = path
    folder = base / own.lstrip("/")
    above = [parent for parent in folder.parents if parent == base or base in parent.parents]
    return [folder, *above]


def pci_gpu_vendors(root: Path = Path("/")) -> tuple[Vendor, ...]:
    """Vendors of the GPUs on the PCI bus: hardware that is there even when no driver is."""
    devices = _present(root / "sys/bus/pci/devices")
    found: set[Vendor] = set()
    for device in devices.iterdir():
        with contextlib.suppress(OSError, ValueError):
            kind = (device / "class").read_text().strip()
            vendor = _PCI_VENDORS.get((device / "vendor").read_text().strip())
            if vendor is not None and kind.startswith(_PCI_CLASSES):
                found.add(vendor)
    return tuple(sorted(found))


def _in_container(root: Path) -> bool:
    if sys.platform != "linux":
        return False
    marks = (root / ".dockerenv", root / "run/.containerenv", root / ".singularity.d")
    return any(_exists(mark) for mark in marks) or "KUBERNETES_SERVICE_HOST" in os.environ


def _filesystem(path: Path) -> str:
    """The kind of file system that a path lies on, such as "ext4", "nfs" or "overlay"."""
    best, kind = "", ""
    for partition in _partitions():
        inside = (
            str(path).startswith(partition.mountpoint.rstrip("/") + "/") or str(path) == partition.mountpoint
        )
        if (inside or partition.mountpoint == "/") and len(partition.mountpoint) >= len(best):
            best, kind = partition.mountpoint, partition.fstype
    return kind


def _partitions() -> list[Any]:
    try:
        return list(psutil.disk_partitions(all=True))
    except (OSError, psutil.Error):  # without /proc, nobody says what is mounted where
        return []


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # a loop of links, or a folder that was deleted under our feet
        return path


def _present(path: Path) -> Path:
    if not _exists(path):
        raise _NotThere(f"{path} does not exist on this system")
    return path


def _exists(path: Path) -> bool:
    """Path.exists raises where a folder on the way is closed to us, or a name is too long."""
    try:
        return path.exists()
    except OSError:
        return False


def _text(root: Path, name: str) -> str:
    return _present(root / name).read_text().strip()
