"""A seat on a module: a call of ours before its own, which state_dict, pickle and deepcopy leave behind."""

from collections.abc import Callable
from typing import Any

_SEAT = "_compiled_call_impl"
_WRAPPERS = ("DistributedDataParallel", "DataParallel")

REPLICATED = "nn.DataParallel calls replicas, which no lever reaches; DistributedDataParallel has none"


class Seat:
    """One that is taken: `around` makes our call of what is called there now."""

    def __init__(self, module: Any, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._module = module
        # `Module.compile()` of the script's own: it stays, below ours.
        self._found = module.__dict__.get(_SEAT)
        self._call = around(self._found or module._call_impl)  # noqa: SLF001
        module.__dict__[_SEAT] = self._call

    def is_on(self, module: Any) -> bool:
        """Whether it is this module's."""
        return self._module is module

    def leave(self) -> None:
        """As it was found, where nobody has put another on top."""
        own = self._module.__dict__
        if own.get(_SEAT) is self._call:
            if self._found is None:
                own.pop(_SEAT)
            else:
                own[_SEAT] = self._found


def inner_of(root: Any) -> Any:
    """The module that a wrapper calls; None where there is no wrapper, or where it calls replicas."""
    inner = root.__dict__.get("_modules", {}).get("module")
    if inner is None or type(root).__name__ not in _WRAPPERS or _replicates(root):
        return None
    return inner


def replicated(root: Any) -> set[int]:
    """Modules of which replicas are made: those would take our call along, and so call the original."""
    wrappers = [one for one in root.modules() if _replicates(one)]
    return {id(part) for one in wrappers for part in one.module.modules()}


def _replicates(module: Any) -> bool:
    return type(module).__name__ == "DataParallel" and len(getattr(module, "device_ids", None) or ()) > 1
