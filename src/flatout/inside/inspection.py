"""A close look at the first updates, for `flatout check`: shapes, dtypes, devices, where gradients arrive.

It reads from the device at once, as the guard does (`guarding.py`): nobody is timed while it looks.
"""

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout.inside.pairing import checksum, is_capturing
from flatout.records.session import INSPECTION_FILE

if TYPE_CHECKING:
    from flatout.inside.session import Session

_LIST_AT_MOST = 200
_DEPTH_AT_MOST = 4


class Inspection:
    """Looks at every training call and update until it has seen enough."""

    def __init__(self, session: "Session", updates: int) -> None:
        self._session = session
        self._updates = updates
        self._calls: list[dict[str, Any]] = []
        self._names: dict[int, str] = {}
        # By the parameter's id: its name may be known later, where updates call the model themselves.
        self._parameters: dict[int, dict[str, Any]] = {}
        self._sums: dict[int, Any] = {}

    def called(self, module: Any, args: Any, kwargs: Any, result: Any) -> None:
        """A root was called for training."""
        if self._session.updates >= self._updates or len(self._calls) >= _LIST_AT_MOST:
            return
        torch = self._session.torch
        devices = sorted({str(parameter.device) for parameter in module.parameters()})
        self._calls.append(
            {
                "update": self._session.updates,
                "module": type(module).__qualname__,
                "inputs": describe([*args, *([kwargs] if kwargs else [])]),
                "output": describe(result),
                "devices": devices,
                "autocast": _autocast(torch, devices[0] if devices else "cpu"),
            }
        )

    def before_update(self, optimizer: Any) -> None:
        """Gradients are complete: see which parameters they reached."""
        if self._session.updates >= self._updates or is_capturing(self._session.torch):
            return
        self._session.busy += 1  # our own copies are none of the loop's
        try:
            self._look(optimizer)
        finally:
            self._session.busy -= 1

    def _look(self, optimizer: Any) -> None:
        self._learn_names()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                entry = self._entry(parameter)
                entry["optimized"] = True
                entry["learning_rate"] = float(group.get("lr", math.nan))
        for root in self._session.roots():
            for parameter in root.parameters():
                self._look_at(parameter)

    def write(self, folder: Path) -> None:
        """Leave what was seen in the run folder."""
        self._see_what_changed()
        self._name_all()
        whole = {"calls": self._calls, "parameters": list(self._parameters.values())}
        fresh = folder / f".{INSPECTION_FILE}.tmp"
        fresh.write_text(json.dumps(whole, default=str))
        os.replace(fresh, folder / INSPECTION_FILE)  # noqa: PTH105

    def _learn_names(self) -> None:
        roots = self._session.roots()
        for root in roots:
            prefix = f"{type(root).__qualname__}." if len(roots) > 1 else ""
            for name, parameter in root.named_parameters():
                clean = name.removeprefix("module.").removeprefix("_orig_mod.")
                self._names.setdefault(id(parameter), prefix + clean)

    def _name_all(self) -> None:
        self._learn_names()
        for key, entry in self._parameters.items():
            entry["name"] = self._names.get(key) or f"(in no module) {tuple(entry['shape'])}"

    def _entry(self, parameter: Any) -> dict[str, Any]:
        key = id(parameter)
        entry = self._parameters.get(key)
        if entry is None:
            entry = self._parameters[key] = {
                "name": "",
                "shape": list(parameter.shape),
                "dtype": _word(parameter.dtype),
                "device": str(parameter.device),
                "trainable": bool(parameter.requires_grad),
                "optimized": False,
                "learning_rate": None,
                "updates_with_gradient": 0,
                "updates_with_zero_gradient": 0,
                "updates_with_bad_gradient": 0,
                "changed": None,
            }
            self._sums[key] = (parameter, checksum(self._session.torch, parameter))
        return entry

    def _look_at(self, parameter: Any) -> None:
        entry = self._entry(parameter)
        gradient = parameter.grad
        if gradient is None:
            return
        torch = self._session.torch
        if not bool(
            torch.isfinite(gradient if not gradient.is_sparse else gradient.coalesce().values()).all()
        ):
            entry["updates_with_bad_gradient"] += 1
        elif int(torch.count_nonzero(gradient.to_dense() if gradient.is_sparse else gradient)) == 0:
            entry["updates_with_zero_gradient"] += 1
        else:
            entry["updates_with_gradient"] += 1

    def _see_what_changed(self) -> None:
        for key, (parameter, before) in self._sums.items():
            if before is not None:
                after = checksum(self._session.torch, parameter)
                self._parameters[key]["changed"] = bool((after != before).item())


def _autocast(torch: Any, device: str) -> str | None:
    kind = device.split(":", maxsplit=1)[0]
    return _word(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else None


def _word(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def describe(tree: Any, depth: int = 0) -> Any:
    """Tensors by shape, dtype and device; other values by their type; nesting kept."""
    if hasattr(tree, "untyped_storage"):
        return {"shape": list(tree.shape), "dtype": _word(tree.dtype), "device": str(tree.device)}
    if depth >= _DEPTH_AT_MOST:
        return type(tree).__qualname__
    if isinstance(tree, dict):
        return {str(key): describe(value, depth + 1) for key, value in list(tree.items())[:_LIST_AT_MOST]}
    if isinstance(tree, list | tuple):
        return [describe(value, depth + 1) for value in tree[:_LIST_AT_MOST]]
    return type(tree).__qualname__
