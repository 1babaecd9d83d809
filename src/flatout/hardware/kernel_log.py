"""Xid errors in the kernel's log: what the NVIDIA driver complained of since boot."""

import re

from flatout.hardware.command import RunTool, run_tool
from flatout.records.machine import KernelXid

# On a GPU with MIG the parenthesis names the instance too: (PCI:0000:01:00 GPU-I:05).
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)[^)\n]*\): (\d{1,6})(.*)")
_TIMEOUT_S = 3.0
_KEEP = 200


def kernel_xids(run: RunTool = run_tool) -> tuple[tuple[KernelXid, ...] | None, str]:
    """The Xid lines of this boot, or None and the reason why the log cannot be read."""
    reasons = []
    for arguments in (["dmesg"], ["journalctl", "--dmesg", "--boot", "--no-pager", "--quiet"]):
        output = run(arguments, timeout_s=_TIMEOUT_S)
        if output.text is not None and output.text.strip():
            return parse_xids(output.text), ""
        # A kernel always logs something: an empty log (journalctl's answer to plain users) was not shown.
        reasons.append(output.reason or f"{arguments[0]} shows this user no kernel messages")
    return None, "; ".join(reasons)


def parse_xids(log: str) -> tuple[KernelXid, ...]:
    """The last Xid lines of a kernel log."""
    found = [
        KernelXid(pci_bus_id=match[1].lower(), xid=int(match[2]), text=match[3].strip(" ,"))
        for match in _XID.finditer(log)
    ]
    return tuple(found[-_KEEP:])
