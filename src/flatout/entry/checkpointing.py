"""`flatout.Checkpointer` and `flatout.stop_requested`: trainings that can be stopped, and killed."""

from flatout.runtime.checkpoint.checkpointer import Checkpointer
from flatout.runtime.stopping import Stopped, stop_requested

__all__ = ["Checkpointer", "Stopped", "stop_requested"]
