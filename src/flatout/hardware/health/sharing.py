"""Sharing: who else is on the GPU, what a job may see of it, how it is partitioned."""

from collections.abc import Iterator

from flatout.hardware.health.check import Outcome
from flatout.hardware.visible import CUDA_VARIABLE, visible_cuda_devices
from flatout.records.device import Device, DeviceProcess
from flatout.records.machine import Machine
from flatout.records.words import memory_size

_HOLDS_MUCH_BYTES = 64 << 20


def visible_devices(machine: Machine) -> Iterator[Outcome]:
    """Reads CUDA_VISIBLE_DEVICES as CUDA does and says which physical GPUs a job will get.

    An empty value, a number that does not exist or a repeated one hides GPUs without an error.
    """
    nvidia = [device for device in machine.gpus if device.vendor == "nvidia"]
    if not nvidia or CUDA_VARIABLE not in machine.environment:
        return
    visible = visible_cuda_devices(nvidia, machine.environment)
    if visible.devices is None:
        yield Outcome("unknown", visible.reason, "export CUDA_DEVICE_ORDER=PCI_BUS_ID")
    elif not visible.devices:
        yield Outcome("fail", visible.reason, show_gpus_fix(machine))
    elif visible.ignored:
        yield Outcome("warn", visible.reason, show_gpus_fix(machine))
    else:
        mapped = ", ".join(
            f"cuda:{order} is GPU {device.index}" for order, device in enumerate(visible.devices)
        )
        yield Outcome("ok", f"{visible.reason}: {mapped}")


def show_gpus_fix(machine: Machine) -> str:
    """Under a scheduler the variable keeps jobs off each other's GPUs: there it is not to be unset."""
    if machine.environment.keys() & {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"}:
        return "ask the scheduler for a GPU   # Slurm: --gpus=1"
    return f"unset {CUDA_VARIABLE}"


def mig(machine: Machine) -> Iterator[Outcome]:
    """Looks whether a GPU is partitioned (MIG), and whether it has any instance to run on.

    With MIG on, a job sees one instance and never the whole card. On and without instances, it sees nothing.
    """
    for device in machine.gpus:
        if not device.mig_enabled or device.parent_uuid:
            continue
        instances = [other for other in machine.gpus if other.parent_uuid == device.uuid]
        if device.uuid is None:
            reason = device.unknown.get("uuid", "the driver does not say")
            yield Outcome("unknown", f"MIG is on; its instances cannot be told: {reason}", device=device)
        elif instances:
            names = ", ".join(instance.name for instance in instances)
            yield Outcome("ok", f"MIG is on with {len(instances)} instances: {names}", device=device)
        else:
            make = f"sudo nvidia-smi mig -cgi 0 -C -i {device.index}"
            fix = f"{make}   # or turn it off: sudo nvidia-smi -i {device.index} -mig 0"
            yield Outcome("fail", "MIG is on and has no instance: no job can use this GPU", fix, device)


def compute_mode(machine: Machine) -> Iterator[Outcome]:
    """Looks whether the GPU takes more than one process, or none.

    In an exclusive mode the second rank, or a notebook beside the job, dies at its first CUDA call.
    """
    for device in machine.gpus:
        sample = machine.sample_of(device)
        if sample is None or sample.compute_mode in (None, "default"):
            continue
        fix = f"sudo nvidia-smi -i {device.index} -c DEFAULT"
        if sample.compute_mode == "prohibited":
            yield Outcome("fail", "compute mode is 'prohibited': no job may use it", fix, device)
        else:
            evidence = f"compute mode is {sample.compute_mode!r}: a second process fails to start"
            yield Outcome("warn", evidence, fix, device)


def other_processes(machine: Machine) -> Iterator[Outcome]:
    """Lists the processes that hold memory on each GPU.

    A forgotten notebook or a crashed job's child takes memory and time from yours; it is the first thing to
    look for when a job that used to fit runs out of memory.
    """
    for device in machine.gpus:
        sample = machine.sample_of(device)
        if sample is None or sample.state == "down" or _is_hidden(machine, device):
            continue
        if sample.processes is None:
            if device.vendor == "nvidia":
                yield Outcome(
                    "unknown", sample.unknown.get("processes", "the driver does not say"), device=device
                )
            continue
        # A desktop on the GPU is nobody's forgotten job.
        computing = [process for process in sample.processes if process.kind != "graphics"]
        holding = [p for p in computing if p.memory_bytes is None or p.memory_bytes >= _HOLDS_MUCH_BYTES]
        if not holding:
            yield Outcome("ok", "no other process holds its memory", device=device)
            continue
        pids = ",".join(str(process.pid) for process in holding)
        evidence = "; ".join(_words(process) for process in holding[:4])
        more = f"; and {len(holding) - 4} more" if len(holding) > 4 else ""
        yield Outcome(
            "warn", evidence + more, f"ps -fp {pids}   # whose are they, and are they done?", device
        )


def _is_hidden(machine: Machine, device: Device) -> bool:
    """Whether this job cannot see the GPU anyway: who sits there is not its business."""
    if device.vendor != "nvidia" or CUDA_VARIABLE not in machine.environment:
        return False
    visible = visible_cuda_devices(machine.gpus, machine.environment).devices
    return visible is not None and device not in visible and not device.mig_enabled


def _words(process: DeviceProcess) -> str:
    held = memory_size(process.memory_bytes) if process.memory_bytes is not None else "an unknown amount"
    who = ", ".join(known for known in (process.name, process.user) if known) or "unknown process"
    return f"PID {process.pid} ({who}) holds {held}"
