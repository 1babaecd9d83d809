"""The closed loop: which levers help this job, whether it still learns the same, and the plan."""

import importlib
import sys
import types
from typing import Any


class _Callable(types.ModuleType):
    """`flatout.tune` is a room of the house and a function of its front door: the room answers to a call."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # By name: rooms do not import upwards, and nobody but the front door's visitors comes by here.
        return importlib.import_module("flatout.entry.tuning").tune(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
