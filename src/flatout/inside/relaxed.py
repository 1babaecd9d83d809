"""A thread that may ask a GPU whether it has passed an event while another thread captures a graph.

As CUDA has it, such a question from any thread ends a capture, unless the thread that asks has said that what
it does concerns no capture. torch's own watchdog of collectives does the same.
"""

import ctypes
import os
from typing import Any

_RELAXED = 2  # cudaStreamCaptureModeRelaxed, and hip's


def relax_captures(torch: Any, device: int) -> bool:
    """Say so for this thread; False where that cannot be said: then it must not ask.

    A thread begins on device 0, and its first question would make a context there: hundreds of megabytes.
    """
    torch.cuda.set_device(device)
    exchange = _exchange(torch)
    if exchange is None:
        return False
    mode = ctypes.c_int(_RELAXED)
    return bool(exchange(ctypes.byref(mode)) == 0)


def _exchange(torch: Any) -> Any:
    if getattr(torch.version, "hip", None):
        name, libraries = "hipThreadExchangeStreamCaptureMode", ["libamdhip64.so"]
    else:
        major = str(torch.version.cuda or "").partition(".")[0]
        name, libraries = "cudaThreadExchangeStreamCaptureMode", [f"libcudart.so.{major}"]
    # What torch has loaded, and no other copy: a second one would be asked in vain.
    for library in (None, *libraries):
        try:
            mode = ctypes.DEFAULT_MODE if library is None else os.RTLD_NOLOAD | os.RTLD_NOW
            return getattr(ctypes.CDLL(library, mode=mode), name)
        except (OSError, AttributeError):
            continue
    return None
