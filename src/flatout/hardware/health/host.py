"""The host: shared memory, CPU and memory limits, affinity, disks."""

import shlex
from collections.abc import Iterator

from flatout.hardware.health.check import Outcome
from flatout.records.machine import CheckStatus, Machine, Place
from flatout.records.unknown import NOT_RECORDED
from flatout.records.words import memory_size

_SHM_ENOUGH_BYTES = 1 << 30
_SHM = "/dev/shm"  # noqa: S108 - a name to print, not a file to make
_DISK_LOW_BYTES = 5 << 30
_DISK_FULL_BYTES = 512 << 20
_MEMORY_NEARLY_FULL = 0.9
_SCALES_ITSELF = ("intel_pstate", "amd-pstate", "amd_pstate")
_SHM_FREE_LOW_BYTES = 64 << 20
_MEMORY_LOW_BYTES = 1 << 30
_NETWORK_DISKS = ("nfs", "nfs4", "cifs", "smb", "lustre", "gpfs", "ceph", "fuse.sshfs", "beegfs", "9p")


def shared_memory(machine: Machine) -> Iterator[Outcome]:
    """Looks at the size of /dev/shm, through which DataLoader workers hand over their batches.

    Containers get 64 MiB unless told otherwise; workers then die with "bus error" at the first large batch.
    """
    total, free = machine.host.shm_total_bytes, machine.host.shm_free_bytes
    if total is None:
        return
    if total < _SHM_ENOUGH_BYTES:
        fix = "start the container with --ipc=host or --shm-size=8g   # Kubernetes: an emptyDir in memory"
        if not machine.host.container:
            fix = "sudo mount -o remount,size=8G /dev/shm   # in a container: --ipc=host or --shm-size=8g"
        yield Outcome("warn", f"{_SHM} has {memory_size(total)}: DataLoader workers may die of it", fix)
    elif free is not None and free < _SHM_FREE_LOW_BYTES:
        fix = f"ls -lah {_SHM}   # what is left there by dead workers can be deleted"
        yield Outcome("warn", f"{_SHM} is full: {memory_size(free)} of {memory_size(total)} free", fix)
    else:
        yield Outcome("ok", f"{_SHM} has {memory_size(total)}")


def cpu_limit(machine: Machine) -> Iterator[Outcome]:
    """Compares the CPUs that a control group allows with those that the operating system shows.

    torch, OpenMP and "num_workers = cpu_count" count what is shown. Inside a container with fewer, their
    threads fight for the quota and everything stalls in bursts.
    """
    host = machine.host
    shown = host.cpu_affinity_count or host.cpu_count
    if shown is None:
        return
    if host.cpu_quota is None and host.unknown["cpu_quota"] == NOT_RECORDED:
        yield Outcome("unknown", f"{shown} CPUs are shown; whether fewer are allowed was not recorded")
    elif host.cpu_quota is None:
        yield Outcome("ok", f"{shown} CPUs, no limit")
    elif host.cpu_quota < shown - 0.5:
        allowed = max(1, int(host.cpu_quota))
        evidence = f"{host.cpu_quota:g} CPUs are allowed, and programs see {shown}"
        if _number(machine.environment.get("OMP_NUM_THREADS")) in range(1, allowed + 1):
            yield Outcome("ok", f"{evidence}; OMP_NUM_THREADS is set to fit")
        else:
            yield Outcome(
                "warn", evidence, f"export OMP_NUM_THREADS={allowed}   # and as many loader workers"
            )
    else:
        yield Outcome("ok", f"{host.cpu_quota:g} CPUs are allowed, {shown} are shown")


def cpu_affinity(machine: Machine) -> Iterator[Outcome]:
    """Looks whether this process is bound to a part of the CPUs.

    A job bound to one core (by a scheduler, or by a library that sets affinity) runs its loader workers
    there too.
    """
    bound, total = machine.host.cpu_affinity_count, machine.host.cpu_count
    if bound is None or total is None:
        return
    if bound < total:
        status: CheckStatus = "warn" if bound == 1 or bound * 4 <= total else "ok"
        fix = "taskset -pc $$   # shows it; ask the scheduler for more CPUs" if status == "warn" else ""
        yield Outcome(status, f"bound to {bound} of {total} CPUs", fix)
    else:
        yield Outcome("ok", f"free to use all {total} CPUs")


def cpu_governor(machine: Machine) -> Iterator[Outcome]:
    """Looks at the CPU's frequency governor: "powersave" pins old drivers to the lowest clock.

    Kernel launches then take longer. With intel_pstate and amd-pstate, powersave is the usual setting and
    still reaches full clocks: there it is no fault.
    """
    governor = machine.host.cpu_governor
    driver = machine.host.cpu_frequency_driver or ""
    if governor == "powersave" and not driver.startswith(_SCALES_ITSELF):
        yield Outcome(
            "warn", "the CPU's governor is 'powersave'", "sudo cpupower frequency-set -g performance"
        )
    elif governor:
        yield Outcome("ok", f"the CPU's governor is {governor!r}")


def memory_limit(machine: Machine) -> Iterator[Outcome]:
    """Compares the control group's memory limit with what the operating system shows, and with its use.

    Past the limit the kernel kills the job without a Python error ("Killed", exit code 137).
    """
    host = machine.host
    if host.memory_total_bytes is None:
        return
    if host.memory_limit_bytes is None and host.unknown["memory_limit_bytes"] == NOT_RECORDED:
        shown = memory_size(host.memory_total_bytes)
        yield Outcome("unknown", f"{shown} are shown; whether less is allowed was not recorded")
        return
    if host.memory_limit_bytes is None:
        available = host.memory_available_bytes
        free = f", {memory_size(available)} available" if available is not None else ""
        evidence = f"{memory_size(host.memory_total_bytes)}{free}, no limit"
        if available is not None and available < _MEMORY_LOW_BYTES:
            yield Outcome("warn", evidence, "ps aux --sort=-rss | head   # who has it?")
        else:
            yield Outcome("ok", evidence)
        return
    used = host.memory_limit_used_bytes
    evidence = f"limited to {memory_size(host.memory_limit_bytes)} of {memory_size(host.memory_total_bytes)}"
    if used is None:
        yield Outcome("unknown", f"{evidence}; how much is in use is not known")
        return
    evidence += f", {memory_size(used)} in use"
    if used > _MEMORY_NEARLY_FULL * host.memory_limit_bytes:
        yield Outcome(
            "warn", evidence, "start the container with a higher --memory, or use fewer loader workers"
        )
    else:
        yield Outcome("ok", evidence)


def disk_space(machine: Machine) -> Iterator[Outcome]:
    """Looks at the room in the working folder and for temporary files: a full disk ruins checkpoints."""
    for place in machine.host.places:
        if place.purpose == "compile cache" or place.free_bytes is None:
            continue
        evidence = f"{place.purpose} {place.path}: {memory_size(place.free_bytes)} free"
        fix = f"df -h {shlex.quote(place.path)}   # make room, or work elsewhere"
        if place.writable is False:
            yield Outcome("warn", f"{place.purpose} {place.path} cannot be written", "work in another folder")
        elif place.free_bytes < _DISK_FULL_BYTES:
            yield Outcome("fail", evidence, fix)
        elif place.free_bytes < _DISK_LOW_BYTES:
            yield Outcome("warn", evidence, fix)
        else:
            yield Outcome("ok", evidence)


def compile_cache(machine: Machine) -> Iterator[Outcome]:
    """Looks where torch.compile keeps its results.

    A folder that cannot be written means compiling again at every start; one on a network disk makes each
    start slow. One in memory (tmpfs) is gone after a reboot, which is said and is no fault.
    """
    place = next((found for found in machine.host.places if found.purpose == "compile cache"), None)
    if place is None:
        return
    yield _judge_cache(place)


def _judge_cache(place: Place) -> Outcome:
    move = 'export TORCHINDUCTOR_CACHE_DIR="$HOME/.cache/torchinductor"'
    # On a cluster the home folder is often the network disk itself.
    local = 'export TORCHINDUCTOR_CACHE_DIR="/tmp/torchinductor_$USER"   # or another local disk'
    if place.writable is False:
        return Outcome("warn", f"{place.path} cannot be written: every start compiles again", move)
    if place.filesystem in _NETWORK_DISKS:
        return Outcome("warn", f"{place.path} is on a network disk ({place.filesystem})", local)
    if place.free_bytes is not None and place.free_bytes < _DISK_FULL_BYTES:
        return Outcome("warn", f"{place.path} has only {memory_size(place.free_bytes)} free", move)
    if place.writable is None:
        reason = place.unknown.get("writable", "the system does not say")
        return Outcome("unknown", f"whether {place.path} can be written is not known: {reason}")
    if place.filesystem == "tmpfs":
        return Outcome("ok", f"{place.path}, in memory: a reboot empties it")
    return Outcome("ok", place.path)


def _number(text: str | None) -> int:
    return int(text) if text and text.strip().isdecimal() else 0
