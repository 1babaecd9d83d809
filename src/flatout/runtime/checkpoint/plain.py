"""Takes a training's state apart: plain data, which becomes JSON, and tensors, which become bytes.

What is neither is refused by name: nothing is pickled unless its owner says so, and nothing pickled is ever
read back without being trusted.
"""

import base64
import collections
import math
import pickle
from collections.abc import Callable
from typing import Any

from flatout.runtime.checkpoint.sharding import Part, is_sharded, is_stored_here, part_of

# By type, the mark of what is no plain list, or dict. A defaultdict has its factory's name beside it.
_SEQUENCES: dict[type, str] = {list: "", tuple: "$tuple", set: "$set", frozenset: "$frozenset"}
_MAPPINGS: dict[type, str] = {
    dict: "",
    collections.OrderedDict: "$ordered",
    collections.Counter: "$counter",
    collections.defaultdict: "$defaultdict",
}
_FACTORIES: dict[str, Any] = {
    "none": None,
    "int": int,
    "float": float,
    "bool": bool,
    "str": str,
    "list": list,
    "dict": dict,
    "set": set,
    "tuple": tuple,
    "counter": collections.Counter,
}
_MADE_OF: dict[str, Callable[[Any], Any]] = {
    "$tuple": tuple,
    "$set": set,
    "$frozenset": frozenset,
    "$ordered": collections.OrderedDict,
    "$counter": collections.Counter,
}

# What a tensor is called in the plain data: the file it goes to, and its name there.
Ref = tuple[str, str]


class NotPlain(Exception):
    """Something in a state that is neither plain data nor a tensor, with its place."""


class NotTrusted(Exception):
    """Something that would have to be unpickled, with its place."""


class Apart:
    """A state, taken apart. Each entry at the top has a file of its own for its tensors."""

    def __init__(self, torch: Any, *, pickles: bool = False) -> None:
        self._torch = torch
        self._pickles = pickles
        self.tensors: dict[Ref, Any] = {}
        # Of tensors that are spread over ranks, the part that this one holds.
        self.parts: dict[Ref, Part] = {}
        # Tensors that are the same one (tied weights) are stored once.
        self._known: dict[tuple[Any, ...], Ref] = {}

    def take(self, state: dict[str, Any]) -> dict[str, Any]:
        """The plain part of a state; `tensors` has the rest afterwards."""
        return {name: self._plain(value, name, ()) for name, value in state.items()}

    def _plain(self, value: Any, file: str, path: tuple[str, ...]) -> Any:
        torch = self._torch
        if value is None or isinstance(value, bool | str) or type(value) is int:
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        if isinstance(value, torch.Tensor):
            if is_sharded(value):
                return {"$sharded": list(self._part(value, file, path))}
            return {"$tensor": list(self._tensor(value, file, path))}
        if isinstance(value, torch.Size):
            return {"$size": list(value)}
        # By their very type: a Counter that came back as a dict would be another thing.
        if type(value) in _SEQUENCES or type(value) in _MAPPINGS:
            return self._container(value, file, path)
        if type(value) is bytes:
            return {"$bytes": base64.b64encode(value).decode()}
        if isinstance(value, torch.dtype):
            return {"$dtype": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"$device": str(value)}
        return self._other(value, file, path)

    def _container(self, value: Any, file: str, path: tuple[str, ...]) -> Any:
        kind = type(value)
        if kind in _SEQUENCES:
            inner = [self._plain(one, file, (*path, str(at))) for at, one in enumerate(value)]
            mark = _SEQUENCES[kind]
            return {mark: inner} if mark else inner
        mark = _MAPPINGS[kind]
        if kind is not collections.defaultdict:
            of_dict = self._dict(value, file, path)
            return {mark: of_dict} if mark else of_dict
        name = next((name for name, one in _FACTORIES.items() if one is value.default_factory), "")
        if not name:
            return self._other(value, file, path)
        return {mark: [name, self._dict(value, file, path)]}

    def _dict(self, value: dict[Any, Any], file: str, path: tuple[str, ...]) -> Any:
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: self._plain(one, file, (*path, key)) for key, one in value.items()}
        pairs = [
            [self._plain(key, file, (*path, "key")), self._plain(one, file, (*path, str(key)))]
            for key, one in value.items()
        ]
        return {"$pairs": pairs}

    def _other(self, value: Any, file: str, path: tuple[str, ...]) -> Any:
        kind = type(value)
        if kind.__module__ == "numpy" and hasattr(value, "dtype") and value.dtype.kind in "biufc":
            # Arrays and scalars, by way of a tensor where it has the type, else by their bytes.
            numpy_bytes = base64.b64encode(value.tobytes()).decode()
            shape = list(value.shape) if kind.__name__ == "ndarray" else None
            return {"$numpy": [str(value.dtype.str), shape, numpy_bytes]}
        if isinstance(value, int):  # an IntEnum, say: its number is what counts
            return int(value)
        if self._pickles:
            return {"$pickle": base64.b64encode(pickle.dumps(value)).decode()}
        where = ".".join((file, *path))
        made_by = f" made by {value.default_factory!r}" if kind is collections.defaultdict else ""
        raise NotPlain(f"{where} is a {kind.__module__}.{kind.__qualname__}{made_by}")

    def _part(self, tensor: Any, file: str, path: tuple[str, ...]) -> Ref:
        part, local = part_of(tensor), tensor.to_local()
        ref = self._tensor(local, file, path)
        if is_stored_here(tensor):
            self.parts[ref] = part
        else:
            self.tensors.pop(ref, None)
        return ref

    def _tensor(self, tensor: Any, file: str, path: tuple[str, ...]) -> Ref:
        tensor = tensor.detach()
        same = (file, tensor.data_ptr(), tensor.device, tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and same in self._known:
            return self._known[same]
        name = ".".join(path) or "value"
        ref = (file, name)
        count = 1
        while ref in self.tensors:
            count += 1
            ref = (file, f"{name}#{count}")
        self.tensors[ref] = tensor
        self._known[same] = ref
        return ref


class Together:
    """Puts a state together again."""

    def __init__(
        self,
        torch: Any,
        tensor: Callable[[Ref], Any],
        sharded: Callable[[Ref], Any] | None = None,
        *,
        trust: bool = False,
    ) -> None:
        self._torch = torch
        self._tensor = tensor
        self._sharded = sharded or tensor
        self._trust = trust

    def state(self, plain: dict[str, Any]) -> dict[str, Any]:
        """The state; raises NotTrusted where something in it was pickled, ValueError where it is nonsense."""
        return {name: self._whole(value) for name, value in plain.items()}

    def _whole(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._whole(one) for one in value]
        if not isinstance(value, dict):
            return value
        if len(value) == 1:
            [(mark, inner)] = value.items()
            if mark.startswith("$"):
                return self._marked(mark, inner)
        return {key: self._whole(one) for key, one in value.items()}

    def _marked(self, mark: str, inner: Any) -> Any:
        torch = self._torch
        if mark == "$tensor":
            return self._tensor((inner[0], inner[1]))
        if mark == "$sharded":
            return self._sharded((inner[0], inner[1]))
        if mark == "$pairs":
            return {self._whole(key): self._whole(one) for key, one in inner}
        if mark in _MADE_OF:
            return _MADE_OF[mark](self._whole(inner))
        if mark == "$defaultdict":
            return collections.defaultdict(_FACTORIES[inner[0]], self._whole(inner[1]))
        if mark == "$float":
            return float(inner)
        if mark == "$size":
            return torch.Size(inner)
        if mark == "$bytes":
            return base64.b64decode(inner)
        if mark == "$dtype":
            return _dtype(torch, inner)
        if mark == "$device":
            return torch.device(inner)
        if mark == "$numpy":
            return _numpy(*inner)
        if mark == "$pickle":
            if not self._trust:
                raise NotTrusted("it holds pickled objects, which can run any code when they are read")
            return pickle.loads(base64.b64decode(inner))  # noqa: S301 - its owner trusts it
        raise ValueError(f"nobody knows what {mark!r} is")


def _dtype(torch: Any, name: str) -> Any:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"torch has no dtype {name!r}")
    return found


def _numpy(dtype: str, shape: list[int] | None, data: str) -> Any:
    import numpy as np

    array = np.frombuffer(base64.b64decode(data), dtype=np.dtype(dtype))
    return array[0] if shape is None else array.reshape(shape).copy()
