"""`flatout.Update` and `flatout.NotFinite`: updates that are made, or left out, on all ranks alike."""

from flatout.runtime.finite.judging import NotFinite
from flatout.runtime.finite.update import Update

__all__ = ["NotFinite", "Update"]
