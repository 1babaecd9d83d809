"""Intel GPUs: through `xpu-smi` where it works, through the kernel's sysfs where it does not."""

from flatout.hardware.intel.source import IntelSource

__all__ = ["IntelSource"]
