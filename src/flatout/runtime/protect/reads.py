"""The border at which a script looks into tensors: what it reads there is noted, or is what it was before.

Reads by torch itself, inside of a model's call, and in other threads are none of the loop's.
"""

import base64
import functools
import json
import os
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from flatout.inside.tap import Patch, undo_all
from flatout.runtime.protect.found import OWN_FILES
from flatout.runtime.protect.ghost import REDIRECTION
from flatout.runtime.protect.journal import Journal, Replay

_OF_TENSORS = ("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__")
# Longer ones are packed; what is larger still is looked at, not decided by, and may be said to differ.
_LONG, _LARGEST_BYTES = 1024, 1 << 20
# Of a life: whoever reads so much reads it for its own sake.
_MOST_BYTES = 256 << 20
_UNKNOWN = ["?"]
# Warnings do not count such a frame (see `inside/tap.py`), and the compiler does not try to trace it: they
# take it for a part of Python's import system.
_UNSEEN = "<frozen importlib._bootstrap: flatout>"


class Reads:
    """Every read of the loop, one after the other."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.journal: Journal | None = None
        self.replay: Replay | None = None
        self._not_the_script = (f"{Path(torch.__file__).parent}{os.sep}", OWN_FILES, "<flatout")
        self._call = torch.nn.Module._call_impl.__code__  # noqa: SLF001
        self._places: dict[tuple[CodeType, int], str] = {}
        self._thread = threading.get_ident()
        self._patches: list[Patch] = []
        self._packed_bytes = 0
        # A loader's worker inherits the patches, and nothing of what it reads is the loop's.
        os.register_at_fork(after_in_child=self.stop)

    def install(self) -> None:
        """Begin to look."""
        torch = self._torch
        for owner, name in [
            *((torch.Tensor, name) for name in _OF_TENSORS),
            (torch.amp.GradScaler, "get_scale"),
        ]:
            self._patches.append(Patch(owner, name, self._looking(getattr(owner, name))))

    def stop(self) -> None:
        """No longer."""
        self.journal = self.replay = None
        undo_all(self._patches)

    def _looking(self, real: Callable[..., Any]) -> Callable[..., Any]:
        reads = self

        @functools.wraps(real)
        def read(thing: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != reads._thread:
                return real(thing, *args, **kwargs)
            place = reads._place(sys._getframe(1))  # noqa: SLF001
            if not place:
                return real(thing, *args, **kwargs)
            if reads.replay is not None:
                found = reads.replay.read(place, lambda: None)
                if found == _UNKNOWN:
                    reads.replay.is_strange(place)
                return real(thing, *args, **kwargs) if found in (None, _UNKNOWN) else _value(found)
            value = real(thing, *args, **kwargs)
            if reads.journal is not None:
                reads.journal.note(place, reads._noted(value))
            return value

        plain: Any = read
        plain.__code__ = plain.__code__.replace(co_filename=_UNSEEN)
        return read

    def _noted(self, value: Any) -> Any:
        """As it is written down."""
        plain = _plain(value)
        if isinstance(plain, dict) and "packed" in plain:
            self._packed_bytes += len(plain["packed"][-1])
            if self._packed_bytes > _MOST_BYTES:
                return _UNKNOWN
        return plain

    def _place(self, frame: FrameType) -> str:
        """Where the script is, or "" if it is not the script."""
        code, line = frame.f_code, frame.f_lineno
        if code.co_filename.startswith(self._not_the_script):
            return ""
        above: FrameType | None = frame.f_back
        while above is not None:
            if above.f_code is self._call:
                return ""
            if above.f_code.co_name == REDIRECTION:  # a step of the script, called by way of its model
                break
            above = above.f_back
        found = self._places.get((code, line))
        if found is None:
            found = self._places[code, line] = f"{Path(code.co_filename).name}:{line}"
        return found


def _plain(value: Any) -> Any:
    """As JSON can hold it, and tell it apart."""
    kind = type(value)
    if kind in (int, float, bool):
        return value
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind is list:
        count = _count(value)
        if count <= _LONG:
            return {"list": value}
        return _packed(None, [], json.dumps(value).encode()) if 8 * count <= _LARGEST_BYTES else _UNKNOWN
    if kind.__name__ == "ndarray" and value.nbytes <= _LARGEST_BYTES and value.dtype.kind in "biufc":
        if value.size > _LONG or value.dtype.kind == "c":
            return _packed(value.dtype.str, list(value.shape), value.tobytes())
        return {"array": [value.dtype.str, list(value.shape), value.ravel().tolist()]}
    return _UNKNOWN


def _packed(dtype: str | None, shape: list[int], content: bytes) -> dict[str, Any]:
    return {"packed": [dtype, shape, base64.b85encode(zlib.compress(content, 1)).decode()]}


def _value(plain: Any) -> Any:
    if not isinstance(plain, dict):
        return plain
    [(kind, inner)] = plain.items()
    if kind == "complex":
        return complex(*inner)
    if kind == "list":
        return inner
    import numpy as np

    dtype, shape, values = inner
    if kind == "packed":
        content = zlib.decompress(base64.b85decode(values))
        if dtype is None:
            return json.loads(content)
        return np.frombuffer(content, dtype=np.dtype(dtype)).reshape(shape).copy()
    return np.array(values, dtype=np.dtype(dtype)).reshape(shape)


def _count(value: Any) -> int:
    return sum(_count(one) for one in value) if isinstance(value, list) else 1
