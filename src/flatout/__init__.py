"""Flatout makes PyTorch jobs run at what the GPU can do, and keeps them from running out of memory."""

__version__ = "0.1.0"

__all__ = ["__version__"]
