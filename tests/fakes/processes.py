"""Looking at real processes that a test started."""

import subprocess
import time
from pathlib import Path


def wait_until_gone(pid: int, timeout_s: float = 60) -> bool:
    """True once the process has ended (a zombie that waits for its parent counts as ended)."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def sleeping(**environment: str) -> "subprocess.Popen[bytes]":
    """A process that sleeps, and whose words and variables can be seen.

    `Popen` returns as soon as the program is loaded; its words and then its variables come a moment later.
    """
    return _once_seen(subprocess.Popen(["sleep", "600"], env=environment or None))


def _once_seen(process: "subprocess.Popen[bytes]") -> "subprocess.Popen[bytes]":
    deadline = time.monotonic() + 60
    while not all(Path(f"/proc/{process.pid}/{name}").read_bytes() for name in ("cmdline", "environ")):
        assert time.monotonic() < deadline, "it never became a program"
        time.sleep(0.001)
    return process
