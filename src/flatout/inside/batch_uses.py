"""What the training loop does with a batch before the model gets it: copies it to the device, or more?

A tensor may travel ahead of time only where nobody could tell: its first and only use is the copy, and by
the time the model is called the original is gone. Watched for two batches, by a mode that sees every function
that gets such a tensor.
"""

import importlib
import sys
import weakref
from typing import Any

from flatout.levers.batches import leaves
from flatout.levers.device_prefetch import data_set_name

# Of the batches that come from a loader: late enough for warm-ups to be over.
_WATCHED = (3, 4)
_HARMLESS = {
    "shape", "size", "dim", "ndim", "dtype", "device", "layout", "numel", "nelement", "stride", "is_cuda",
    "is_floating_point", "__len__", "requires_grad", "is_pinned", "element_size", "nbytes", "type",
}  # fmt: skip
_COPIES = ("to", "cuda")


class BatchUses:
    """Learns it in the first steps."""

    def __init__(self) -> None:
        self._came = 0
        self._mode: Any = None
        self._data_set = ""
        # By path: whether it was copied and gone in time, in every batch that was watched.
        self._copied: dict[str, bool] = {}
        self._held: dict[str, weakref.ref[Any]] = {}
        self._used: dict[str, str] = {}

    def came(self, iterator: Any, batch: Any) -> None:
        """A loader has yielded a batch to the loop."""
        self._end()
        self._came += 1
        if self._came not in _WATCHED or self._compiles():
            return
        self._data_set = data_set_name(iterator._dataset)  # noqa: SLF001
        found = dict(leaves(batch))
        here = {path: tensor for path, tensor in found.items() if tensor.device.type == "cpu"}
        self._held = {path: weakref.ref(tensor) for path, tensor in here.items()}
        self._mode = _mode({id(tensor): path for path, tensor in found.items()}, self._used)
        self._mode.__enter__()

    def root_called(self) -> None:
        """The model gets its input: who was copied, and is gone?"""
        if self._mode is None:
            return
        seen = self._mode.copied
        self._end()
        for path, reference in self._held.items():
            ok = path in seen and reference() is None
            self._copied[path] = ok and self._copied.get(path, True)
            if not ok:
                self._used.setdefault(path, "kept" if path in seen else "not copied")
        self._held = {}

    def describe(self) -> dict[str, Any]:
        """Which tensors may travel ahead, of which data set; or why none."""
        copied = [path for path, ok in self._copied.items() if ok and path not in self._used]
        reason = ""
        if not copied and self._used:
            path, use = next(iter(self._used.items()))
            reason = f"the loop does more with a batch's tensor {path!r} than to copy it: {use}"
        return {"copied": copied, "data_set": self._data_set, "reason": reason}

    def _end(self) -> None:
        mode, self._mode = self._mode, None
        if mode is not None:
            overrides = importlib.import_module("torch.overrides")
            # Whoever has put another on top of ours takes that one off first; ours then does nothing.
            mode.over = True
            if overrides._len_torch_function_stack() and overrides._get_current_function_mode() is mode:  # noqa: SLF001
                mode.__exit__(None, None, None)

    @staticmethod
    def _compiles() -> bool:
        """A mode would make compiled code compile again."""
        dynamo = sys.modules.get("torch._dynamo.utils")
        return bool(dynamo is not None and dynamo.counters["stats"].get("unique_graphs"))


def _mode(watched: dict[int, str], used: dict[str, str]) -> Any:
    base: Any = importlib.import_module("torch.overrides").TorchFunctionMode

    class Watching(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.copied: set[str] = set()
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
