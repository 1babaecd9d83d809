"""Flatout makes PyTorch jobs run at what the GPU can do, and keeps them from running out of memory.

with flatout.observe():      # in a notebook or a library: what these training steps cost
    train(model)
"""

from typing import TYPE_CHECKING, Any

from flatout.records.version import __version__

if TYPE_CHECKING:
    from flatout.entry.observe import observe

__all__ = ["__version__", "observe"]


def __getattr__(name: str) -> Any:
    # Loaded when used: `import flatout` reads nothing and loads no torch.
    if name == "observe":
        from flatout.entry.observe import observe

        return observe
    raise AttributeError(f"module 'flatout' has no attribute {name!r}")
