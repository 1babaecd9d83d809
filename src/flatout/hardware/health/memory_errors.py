"""Memory errors and Xid: hardware that is dying, before it takes a job with it."""

from collections import Counter
from collections.abc import Iterator

from flatout.hardware.health.check import Outcome
from flatout.records.machine import KernelXid, Machine

# What the common Xids mean. Those in XID_APPLICATION come from the job, those in XID_HARDWARE from the card.
XID_MEANINGS = {
    13: "graphics engine exception",
    31: "memory page fault",
    43: "reset channel, GPU stopped processing",
    45: "preemptive cleanup after earlier errors",
    48: "double-bit ECC error",
    61: "internal microcontroller breakpoint",
    62: "internal microcontroller halt",
    63: "row remapping or page retirement",
    64: "row remapping or page retirement failed",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "high single-bit ECC error rate",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "GSP firmware timeout",
    120: "GSP firmware error",
}
_NAMED = 4
XID_APPLICATION = frozenset({13, 31, 43, 45, 68, 69})
XID_HARDWARE = frozenset({48, 61, 62, 64, 74, 79, 92, 94, 95, 119, 120, 140})


def ecc_errors(machine: Machine) -> Iterator[Outcome]:
    """Reads the GPU's ECC counters.

    Uncorrected errors since boot mean wrong or lost data; a card that has them over its lifetime deserves a
    closer look. Corrected ones are what ECC is for.
    """
    for device in machine.gpus:
        sample = machine.sample_of(device)
        if sample is None or sample.state == "down" or device.parent_uuid:
            continue
        show = f"nvidia-smi -q -d ECC,ROW_REMAPPER -i {device.index}"
        if device.vendor == "amd":
            show = f"amd-smi metric --ecc --gpu {device.index}"
        if sample.ecc_uncorrected_since_boot:
            evidence = f"{sample.ecc_uncorrected_since_boot} uncorrected errors since boot"
            yield Outcome("fail", evidence, f"{show}   # reset it; replace it if they return", device)
        elif sample.ecc_uncorrected_lifetime:
            evidence = f"none since boot; {sample.ecc_uncorrected_lifetime} uncorrected in its lifetime"
            yield Outcome("warn", evidence, show, device)
        elif sample.ecc_enabled is None:
            continue
        elif not sample.ecc_enabled:
            yield Outcome("ok", "ECC is off, or this card has none: errors go unseen", device=device)
        elif sample.ecc_uncorrected_since_boot is None:
            reason = sample.unknown.get("ecc_uncorrected_since_boot", "the driver does not say")
            yield Outcome("unknown", f"ECC is on; uncorrected errors are not known: {reason}", device=device)
        else:
            corrected = sample.ecc_corrected_since_boot
            known = (
                "corrected errors unknown"
                if corrected is None
                else f"{corrected} corrected errors since boot"
            )
            yield Outcome("ok", f"ECC is on; {known}", device=device)


def memory_repair(machine: Machine) -> Iterator[Outcome]:
    """Looks for memory rows (or pages) that wait for a reset to be replaced, or could not be replaced."""
    for device in machine.gpus:
        sample = machine.sample_of(device)
        if sample is None or (sample.memory_repair_pending is None and sample.memory_repair_failed is None):
            continue
        if sample.memory_repair_failed:
            yield Outcome("fail", "a bad memory row could not be replaced", "replace this GPU", device)
        elif sample.memory_repair_pending:
            fix = f"sudo nvidia-smi --gpu-reset -i {device.index}   # with no job on it, or reboot"
            yield Outcome("warn", "a bad memory row is replaced at the next reset", fix, device)
        elif sample.memory_repair_pending is None:
            reason = sample.unknown.get("memory_repair_pending", "the driver does not say")
            yield Outcome("unknown", reason, device=device)
        else:
            count = sample.memory_rows_remapped
            said = f"; {count} replaced so far" if count else ""
            yield Outcome("ok", f"no memory repair pending{said}", device=device)


def kernel_xids(machine: Machine) -> Iterator[Outcome]:
    """Searches the kernel's log for Xid errors since boot.

    An Xid is the NVIDIA driver's way to say that something went badly wrong. Some come from a broken
    program (13, 31, 43, 45), others from the hardware (48, 79, 95): those return until it is repaired.
    """
    if not any(device.vendor == "nvidia" for device in machine.gpus):
        return
    if machine.kernel_xids is None:
        reason = machine.unknown.get("kernel_xids", "the kernel log cannot be read")
        yield Outcome("unknown", reason, "sudo dmesg | grep -i xid")
        return
    hardware = [entry for entry in machine.kernel_xids if entry.xid in XID_HARDWARE]
    application = [entry for entry in machine.kernel_xids if entry.xid in XID_APPLICATION]
    others = [entry for entry in machine.kernel_xids if entry.xid not in XID_HARDWARE | XID_APPLICATION]
    if hardware:
        yield Outcome(
            "fail", _summary(hardware), "sudo dmesg | grep -i xid   # reset or replace the GPU named there"
        )
    if application:
        yield Outcome(
            "warn", f"{_summary(application)}: usually the job's own fault", "sudo dmesg | grep -i xid"
        )
    if others:
        yield Outcome("warn", _summary(others), "sudo dmesg | grep -i xid")
    if not machine.kernel_xids:
        yield Outcome("ok", "none in the kernel log")


def _summary(entries: list[KernelXid]) -> str:
    counted = Counter((entry.xid, entry.pci_bus_id) for entry in entries)
    named = "; ".join(
        f"Xid {xid} ({XID_MEANINGS.get(xid, 'see the Xid catalogue')}) x{times} on {bus}"
        for (xid, bus), times in counted.most_common(_NAMED)
    )
    return f"{named}; and {len(counted) - _NAMED} kinds more" if len(counted) > _NAMED else named
