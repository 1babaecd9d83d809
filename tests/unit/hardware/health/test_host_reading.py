"""Reading the host, its kernel log and its processes, from real files."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from flatout.hardware.command import ToolOutput
from flatout.hardware.host import pci_gpu_vendors, read_host, read_place
from flatout.hardware.kernel_log import kernel_xids, parse_xids
from flatout.hardware.processes import describe_process
from tests.fakes.vendor_tools import FakeTools

MIB = 1 << 20


def write(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


# --- control groups, version 2 ----------------------------------------------------------------------------


def test_the_tightest_limit_on_the_way_up_holds(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/kubepods/pod1/job"
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/kubepods/pod1/job\n",
            f"{group}/cpu.max": "800000 100000\n",
            f"{group}/memory.max": f"{900 * MIB}\n",
            f"{group}/memory.current": f"{100 * MIB}\n",
            "sys/fs/cgroup/kubepods/pod1/cpu.max": "250000 100000\n",
            "sys/fs/cgroup/kubepods/pod1/memory.max": f"{500 * MIB}\n",
            "sys/fs/cgroup/kubepods/pod1/memory.current": f"{480 * MIB}\n",
            "sys/fs/cgroup/kubepods/cpu.max": "max 100000\n",
            "sys/fs/cgroup/kubepods/memory.max": "max\n",
        },
    )

    host = read_host(root=tmp_path)

    assert host.cpu_quota == 2.5
    assert host.memory_limit_bytes == 500 * MIB
    # The use that counts is that of the group with the limit: siblings fill it too.
    assert host.memory_limit_used_bytes == 480 * MIB


def test_a_limit_of_the_own_group_is_kept_when_it_is_the_tightest(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/outer/inner\n",
            "sys/fs/cgroup/outer/inner/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/outer/cpu.max": "400000 100000\n",
        },
    )

    assert read_host(root=tmp_path).cpu_quota == 1.5


def test_a_containers_own_view_is_read_at_the_top(tmp_path: Path) -> None:
    # Without a cgroup namespace the path is the host's, and the folder is not there.
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/system.slice/docker-abc.scope\n",
            "sys/fs/cgroup/cpu.max": "400000 100000",
            "sys/fs/cgroup/memory.max": str(256 * MIB),
        },
    )

    host = read_host(root=tmp_path)

    assert (host.cpu_quota, host.memory_limit_bytes) == (4.0, 256 * MIB)


def test_page_cache_that_can_be_dropped_is_not_counted_as_used(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "sys/fs/cgroup/memory.max": str(512 * MIB),
            "sys/fs/cgroup/memory.current": str(500 * MIB),
            "sys/fs/cgroup/memory.stat": f"anon {90 * MIB}\nfile {410 * MIB}\ninactive_file {400 * MIB}\n",
        },
    )

    assert read_host(root=tmp_path).memory_limit_used_bytes == 100 * MIB


def test_max_is_no_limit(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.max": "max 100000\n",
            "sys/fs/cgroup/memory.max": "max\n",
            "sys/fs/cgroup/memory.current": "1000\n",
        },
    )

    host = read_host(root=tmp_path)

    assert (host.cpu_quota, host.memory_limit_bytes) == (None, None)
    assert host.unknown["cpu_quota"] == "no CPU limit is set"
    assert host.unknown["memory_limit_bytes"] == "no memory limit is set"


def test_a_limit_above_what_the_machine_has_is_none(tmp_path: Path) -> None:
    write(tmp_path, {"sys/fs/cgroup/memory.max": str(1 << 59)})

    assert read_host(root=tmp_path).memory_limit_bytes is None


# --- control groups, version 1 ----------------------------------------------------------------------------


def test_version_1_limits_are_read(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "350000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{300 * MIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{290 * MIB}\n",
            "sys/fs/cgroup/memory/memory.stat": f"cache 1\ntotal_inactive_file {40 * MIB}\n",
        },
    )

    host = read_host(root=tmp_path)

    assert host.cpu_quota == 3.5
    assert (host.memory_limit_bytes, host.memory_limit_used_bytes) == (300 * MIB, 250 * MIB)


def test_a_schedulers_version_1_group_is_found_by_its_controller(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "9:memory:/slurm/job_7\n4:cpu,cpuacct:/slurm/job_7\n1:name=systemd:/x\n",
            "sys/fs/cgroup/cpu/slurm/job_7/cpu.cfs_quota_us": "200000",
            "sys/fs/cgroup/cpu/slurm/job_7/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes": str(64 * MIB),
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        },
    )

    host = read_host(root=tmp_path)

    assert (host.cpu_quota, host.memory_limit_bytes) == (2.0, 64 * MIB)


def test_version_1_without_limits_has_none(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )

    host = read_host(root=tmp_path)

    assert (host.cpu_quota, host.memory_limit_bytes) == (None, None)


# --- bad files --------------------------------------------------------------------------------------------

GARBAGE = [
    "",
    "\n",
    "garbage",
    "100000",
    "100000 0",
    "-5 100000",
    "max",
    "1e400 1",
    b"\xff\xfe\x00",
    "9" * 5000,
]


@pytest.mark.parametrize("content", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_no_limit_and_no_error(tmp_path: Path, content: str | bytes) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": content,
            "sys/fs/cgroup/cpu.max": content,
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": content,
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "0",
            "sys/fs/cgroup/memory.max": str(200 * MIB),
            "sys/fs/cgroup/memory.current": "garbage",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "-1",
            "sys/bus/pci/devices/0000:01:00.0/class": content,
            "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de",
        },
    )

    host = read_host(root=tmp_path)

    assert host.cpu_quota is None
    # What can be read still counts beside what cannot.
    assert host.memory_limit_bytes == 200 * MIB
    assert host.memory_limit_used_bytes is None
    assert host.unknown["memory_limit_used_bytes"]
    assert host.pci_gpu_vendors == ()


def test_an_empty_root_leaves_every_file_unknown_with_a_reason(tmp_path: Path) -> None:
    host = read_host(root=tmp_path)

    absent = ("cpu_quota", "cpu_governor", "memory_limit_bytes", "shm_total_bytes", "shm_free_bytes")
    for field in (*absent, "pci_gpu_vendors", "memory_limit_used_bytes"):
        assert getattr(host, field) is None
        assert host.unknown[field] not in ("", "not recorded")
    assert host.cpu_count == os.cpu_count()
    assert host.memory_total_bytes


def test_governor_shared_memory_and_container_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert read_host(root=tmp_path).container is False
    write(
        tmp_path,
        {
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
            "dev/shm/x": "",
            ".dockerenv": "",
        },
    )

    host = read_host(root=tmp_path)

    assert (host.cpu_governor, host.container) == ("powersave", True)
    assert host.shm_total_bytes
    assert host.shm_free_bytes is not None


def test_this_machine_can_be_read() -> None:
    host = read_host(places=(("working folder", Path.cwd()),))

    assert host.cpu_affinity_count == len(os.sched_getaffinity(0))
    assert host.places[0].free_bytes


# --- places -----------------------------------------------------------------------------------------------


def test_a_folder_that_will_be_made_is_judged_by_where_it_will_stand(tmp_path: Path) -> None:
    place = read_place("compile cache", tmp_path / "not" / "yet")

    assert place.path == str(tmp_path / "not" / "yet")
    assert place.writable is True
    assert place.free_bytes
    assert place.filesystem


def test_a_name_that_is_too_long_is_survived(tmp_path: Path) -> None:
    # Like a closed folder on the way, it makes Path.exists raise.
    place = read_place("compile cache", tmp_path / ("x" * 300) / "cache")

    assert place.free_bytes


@pytest.mark.parametrize("path", ["/proc", "/proc/self"])
def test_the_kind_of_a_mounted_file_system_is_known_at_and_below_its_mount(path: str) -> None:
    if not any(partition.mountpoint == "/proc" for partition in psutil.disk_partitions(all=True)):
        pytest.skip("/proc is not a mount of its own here")

    assert read_place("temporary files", Path(path)).filesystem == "proc"


def test_a_path_is_judged_by_where_it_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not any(partition.mountpoint == "/proc" for partition in psutil.disk_partitions(all=True)):
        pytest.skip("/proc is not a mount of its own here")
    (tmp_path / "link").symlink_to("/proc/self")
    assert read_place("compile cache", tmp_path / "link" / "cache").filesystem == "proc"
    monkeypatch.chdir("/proc")
    assert read_place("compile cache", Path("cache")).filesystem == "proc"


# --- the PCI bus ------------------------------------------------------------------------------------------


def pci(root: Path, *devices: tuple[str, str]) -> Path:
    for number, (vendor, kind) in enumerate(devices):
        folder = f"sys/bus/pci/devices/0000:{number:02x}:00.0"
        write(root, {f"{folder}/vendor": f"{vendor}\n", f"{folder}/class": f"{kind}\n"})
    return root


def test_gpus_on_the_bus_are_found_by_class_and_vendor(tmp_path: Path) -> None:
    root = pci(tmp_path, ("0x10de", "0x030200"), ("0x1002", "0x038000"), ("0x8086", "0x030000"))

    assert pci_gpu_vendors(root) == ("amd", "intel", "nvidia")


def test_an_accelerator_without_a_display_counts(tmp_path: Path) -> None:
    assert pci_gpu_vendors(pci(tmp_path, ("0x1002", "0x120000"), ("0x1002", "0x120000"))) == ("amd",)


def test_sound_switches_and_other_display_chips_do_not_count(tmp_path: Path) -> None:
    # NVIDIA's audio function, an NVSwitch, Intel's network card, the server's own VGA chip.
    root = pci(
        tmp_path,
        ("0x10de", "0x040300"),
        ("0x10de", "0x068000"),
        ("0x8086", "0x020000"),
        ("0x1a03", "0x030000"),
    )

    assert pci_gpu_vendors(root) == ()


def test_a_device_that_cannot_be_read_does_not_hide_the_next(tmp_path: Path) -> None:
    root = pci(tmp_path, ("0x10de", "0x030200"))
    write(
        root,
        {"sys/bus/pci/devices/0000:7f:00.0/class": b"\xff\xfe", "sys/bus/pci/devices/0000:80:00.0/x": ""},
    )

    assert pci_gpu_vendors(root) == ("nvidia",)


# --- the kernel's log -------------------------------------------------------------------------------------

LOG = """\
[    0.000000] Linux version 6.8.0-60-generic (buildd@lcy02) #63-Ubuntu SMP
[ 8123.456789] NVRM: GPU at PCI:0000:3b:00: GPU-5d3f0e6a-1c2b-4a7e-9f10-2b8c7d6e5f40
[ 8123.456790] NVRM: Xid (PCI:0000:3b:00): 31, pid=4242, name=python, Ch 00000008, intr 00000000. MMU Fault: \
ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f2a_4c000000.
[Fri Aug 30 11:43:09 2024] NVRM: Xid (PCI:0000:CB:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp \
Exception on (GPC 7, TPC 7, SM 0): Illegal Instruction Parameter
Aug 30 11:43:14 node7 kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.
[ 9000.000001] NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No
[ 9000.000002] NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:00): 43, pid=7195, name=python, Ch 00000010
[ 9000.000003] nvidia-nvswitch0: SXid (PCI:0000:07:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
[ 9000.000004] audit: a line that mentions Xid 79 and is none
"""


def test_xid_lines_are_found_in_a_kernel_log() -> None:
    found = parse_xids(LOG)

    assert [(entry.pci_bus_id, entry.xid) for entry in found] == [
        ("0000:3b:00", 31),
        ("0000:cb:00", 13),
        ("0000:3b:00", 79),
        ("0000:01:00", 94),
        ("0000:01:00", 43),
    ]
    assert found[0].text.startswith("pid=4242, name=python")
    assert found[2].text == "GPU has fallen off the bus."


def test_a_log_without_xids_has_none() -> None:
    assert parse_xids("") == ()
    assert parse_xids("NVRM: Xid (PCI:0000:3b:00): \nNVRM: Xid (PCI:\n") == ()


def test_a_storm_of_xids_keeps_the_last_ones() -> None:
    found = parse_xids("".join(f"NVRM: Xid (PCI:0000:3b:00): {number}, x\n" for number in range(1000)))

    assert [entry.xid for entry in found] == list(range(800, 1000))


def test_a_number_of_absurd_length_is_no_xid() -> None:
    assert all(entry.xid < 10**6 for entry in parse_xids(f"NVRM: Xid (PCI:0000:3b:00): {'9' * 10_000}, x"))


def test_dmesg_is_enough_when_it_answers() -> None:
    tools = FakeTools({("dmesg",): LOG})

    found, reason = kernel_xids(tools)

    assert (len(found or ()), reason) == (5, "")
    assert tools.calls == [("dmesg",)]


def test_journalctl_is_asked_when_dmesg_may_not_be_read() -> None:
    refused = ToolOutput(text=None, reason="dmesg exited with 1: Operation not permitted")
    tools = FakeTools({("dmesg",): refused, ("journalctl",): LOG})

    found, reason = kernel_xids(tools)

    assert (len(found or ()), reason) == (5, "")
    assert [call[0] for call in tools.calls] == ["dmesg", "journalctl"]
    assert "--boot" in tools.calls[1]


def test_both_reasons_are_given_when_neither_can_be_read() -> None:
    refused = ToolOutput(text=None, reason="dmesg exited with 1: Operation not permitted")

    found, reason = kernel_xids(FakeTools({("dmesg",): refused}))

    assert found is None
    assert reason == "dmesg exited with 1: Operation not permitted; journalctl is not installed"


def test_a_journal_that_shows_a_plain_user_nothing_is_not_a_clean_log() -> None:
    refused = ToolOutput(text=None, reason="dmesg exited with 1: Operation not permitted")

    found, reason = kernel_xids(FakeTools({("dmesg",): refused, ("journalctl",): "\n"}))

    assert found is None
    assert "journalctl shows this user no kernel messages" in reason


def test_a_readable_log_without_xids_is_clean() -> None:
    assert kernel_xids(FakeTools({("dmesg",): "[    0.000000] Linux version 6.8.0\n"})) == ((), "")


# --- processes --------------------------------------------------------------------------------------------


def test_our_own_process_is_known_by_the_device_file_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "nvidia0"
    with path.open("w"):
        found = describe_process(
            os.getpid(),
            kind="compute",
            memory_bytes=5 * MIB,
            active_share=0.5,
            device_paths=(str(tmp_path / "nvidia"),),
        )

    assert found.name
    assert found.user
    assert found.age_s is not None
    assert found.age_s >= 0
    assert (found.kind, found.memory_bytes, found.unknown) == ("compute", 5 * MIB, {})


def test_a_child_that_holds_the_device_file_is_known(tmp_path: Path) -> None:
    path = tmp_path / "nvidia0"
    with path.open("w") as held:
        program = "import sys; print('up', flush=True); sys.stdin.read()"
        child = subprocess.Popen(
            [sys.executable, "-c", program],
            pass_fds=[held.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        alive = describe_process(child.pid, kind="compute", memory_bytes=1, device_paths=(str(path),))
        child.communicate()
    ended = describe_process(child.pid, kind="compute", memory_bytes=1, device_paths=(str(path),))

    assert alive.name is not None
    assert ended.name is None
    assert "unknown process" in ended.unknown["name"]


def test_a_process_that_does_not_hold_the_device_is_a_stranger(tmp_path: Path) -> None:
    found = describe_process(
        os.getpid(), kind="compute", memory_bytes=7, device_paths=(str(tmp_path / "nvidia0"),)
    )

    assert (found.pid, found.memory_bytes) == (os.getpid(), 7)
    for field in ("name", "user", "age_s"):
        assert getattr(found, field) is None
        assert "unknown process" in found.unknown[field]


@pytest.mark.parametrize("pid", [0, -1, (1 << 22) + 1, 4294967295])
def test_an_absurd_pid_is_named_and_not_looked_up(pid: int) -> None:
    found = describe_process(pid, kind="graphics", memory_bytes=None, device_paths=("/",))

    assert (found.pid, found.kind, found.name) == (pid, "graphics", None)
    assert found.unknown["name"] == f"{pid} is not a possible PID"
    assert "does not say" in found.unknown["memory_bytes"]


def test_the_drivers_reason_for_missing_memory_is_kept() -> None:
    found = describe_process(
        0, kind="unknown", memory_bytes=None, memory_reason="in use by WSL", device_paths=("/dev/nvidia",)
    )

    assert found.unknown["memory_bytes"] == "in use by WSL"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_without_proc_memory_is_unknown_with_a_reason_and_the_rest_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flatout.hardware.host.psutil.PROCFS_PATH", str(tmp_path / "nowhere"))
    host = read_host(places=(("work", tmp_path),))
    assert (host.memory_total_bytes, host.memory_available_bytes) == (None, None)
    assert "meminfo" in host.unknown["memory_total_bytes"]
    assert host.cpu_count
    assert host.places[0].free_bytes
