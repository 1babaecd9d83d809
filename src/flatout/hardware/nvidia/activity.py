"""Which processes had kernels running on a GPU in the last seconds, as NVML's own samples tell."""

from typing import Any

from flatout.hardware.nvidia.reading import describe_error
from flatout.hardware.nvidia.session import NOT_FOUND, error_code

ACTIVITY_WINDOW_S = 5.0
# What the binding raises where the driver has an empty list and calls it a success.
_NOTHING_TO_TELL = (0, NOT_FOUND)


def active_shares(library: Any, handle: Any, now_unix_s: float) -> tuple[dict[int, float] | None, str]:
    """The largest share of each process that had any; None, and why, where NVML does not tell."""
    since_us = int((now_unix_s - ACTIVITY_WINDOW_S) * 1e6)
    try:
        samples = library.nvmlDeviceGetProcessUtilization(handle, since_us)
    except (library.NVMLError, AttributeError) as error:
        if error_code(error) in _NOTHING_TO_TELL:
            return {}, ""
        return None, f"activity of single processes: {describe_error(error)}"
    shares: dict[int, float] = {}
    for sample in samples:
        # Drivers fill unused places with old or impossible entries.
        share = max(int(sample.smUtil), int(sample.memUtil))
        if sample.timeStamp >= since_us and 0 <= share <= 100:
            shares[int(sample.pid)] = max(share / 100, shares.get(int(sample.pid), 0.0))
    return shares, ""
