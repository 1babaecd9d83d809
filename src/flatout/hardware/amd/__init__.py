"""AMD GPUs: through AMD's library where it works, through `rocm-smi` where it does not."""

from flatout.hardware.amd.source import AmdSource

__all__ = ["AmdSource"]
