"""What the training loop does with a batch before the model gets it: copies it to the device, or more?

A tensor may travel ahead of time only where nobody could tell: its first and only use is the copy, and the
copy takes its name. Watched for two batches, by a mode that sees every function that gets such a tensor; and
the loop's own source must show the same, for what runs only now and then.
"""

import importlib
import threading
from typing import Any

from flatout.inside.loop_reading import copied_first
from flatout.levers.batches import leaves
from flatout.levers.compiled_graphs import graphs_compiled
from flatout.levers.device_prefetch import data_set_name
from flatout.levers.places import users_frame

# Of the batches that come from a loader: late enough for warm-ups to be over.
_WATCHED = (3, 4)
_HARMLESS = {
    "shape", "size", "dim", "ndim", "dtype", "device", "layout", "numel", "nelement", "stride", "is_cuda",
    "is_floating_point", "__len__", "requires_grad", "is_pinned", "element_size", "nbytes", "type",
}  # fmt: skip
_COPIES = ("to", "cuda")


class BatchUses:
    """Learns it in the first steps."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._came = 0
        self._mode: Any = None
        self._over: list[Any] = []
        self._data_set = ""
        # By path: whether it was copied in time, in every batch that was watched.
        self._copied: dict[str, bool] = {}
        self._held: set[str] = set()
        self._used: dict[str, str] = {}

    def came(self, iterator: Any, batch: Any) -> None:
        """A loader has yielded a batch to the loop."""
        self._end()
        self._came += 1
        # A mode would make compiled code compile again; on top of another, that one's block would end ours.
        if self._came not in _WATCHED or graphs_compiled() or _modes():
            return
        self._data_set = data_set_name(iterator._dataset)  # noqa: SLF001
        found = dict(leaves(batch))
        here = {path: tensor for path, tensor in found.items() if tensor.device.type == "cpu"}
        self._held = set(here)
        self._mode = _mode(found, self._used)
        self._mode.__enter__()
        frame = users_frame(self._torch)
        read = copied_first(frame) if frame is not None else None
        for path in found:
            if not (read or {}).get(path):
                self._used.setdefault(path, "its loop's source does not show that it is copied first")

    def root_called(self) -> None:
        """The model gets its input: what was copied by now?"""
        if self._mode is None:
            return
        seen = self._mode.copied
        self._end()
        for path in self._held:
            self._copied[path] = path in seen and self._copied.get(path, True)
            if path not in seen:
                self._used.setdefault(path, "not copied")
        self._held = set()

    def describe(self) -> dict[str, Any]:
        """Which tensors may travel ahead, of which data set; or why none."""
        copied = sorted(path for path, ok in self._copied.items() if ok and path not in self._used)
        reason = ""
        if not copied and self._used:
            path, use = next(iter(self._used.items()))
            reason = f"the loop does more with a batch's tensor {path!r} than to copy it: {use}"
        return {"copied": copied, "data_set": self._data_set, "reason": reason}

    def _end(self) -> None:
        mode, self._mode = self._mode, None
        if mode is not None:
            mode.over = True
            self._over.append(mode)
        # Whoever has put another on top of ours takes that one off first; ours does nothing until then.
        overrides = importlib.import_module("torch.overrides")
        while (
            self._over
            and self._over[-1].thread == threading.get_ident()
            and _modes()
            and overrides._get_current_function_mode() is self._over[-1]  # noqa: SLF001
        ):
            self._over.pop().__exit__(None, None, None)


def _modes() -> int:
    """How many modes are on: `with torch.device(...)`, for one."""
    return int(importlib.import_module("torch.overrides")._len_torch_function_stack())  # noqa: SLF001


def _mode(tensors: dict[str, Any], used: dict[str, str]) -> Any:
    watched = {id(tensor): path for path, tensor in tensors.items()}
    base: Any = importlib.import_module("torch.overrides").TorchFunctionMode

    class Watching(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.copied: set[str] = set()
            self.alive = tensors  # or another would get the place, and the name, of one that is gone
            self.thread = threading.get_ident()
            self.over = False

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if not self.over:
                self._note(func, args, kwargs or {}, result)
            return result

        def _note(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
            name = str(getattr(func, "__name__", func))
            if name == "__get__":
                name = str(getattr(getattr(func, "__self__", None), "__name__", name))
            if name in _HARMLESS:
                return
            flat = [*args, *kwargs.values()]
            flat += [item for value in flat if isinstance(value, list | tuple) for item in value]
            for value in flat:
                path = watched.get(id(value))
                if path is None or not hasattr(value, "untyped_storage"):
                    continue
                if name in _COPIES and value is args[0] and result.device.type != "cpu":
                    self.copied.add(path)
                else:
                    used.setdefault(path, name)

    return Watching()
