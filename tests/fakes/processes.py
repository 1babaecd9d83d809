"""Looking at real processes that a test started."""

import time
from pathlib import Path


def wait_until_gone(pid: int, timeout_s: float = 20) -> bool:
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
