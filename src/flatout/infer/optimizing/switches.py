"""Switches of the whole process, turned for the length of a call; several threads may want them."""

import contextlib
import importlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

from flatout.infer.optimizing.ways import Way
from flatout.levers.attention_kernels import BACKENDS

_lock = threading.Lock()
# By switch: what was found there, and how many calls want it otherwise.
_turned: dict[tuple[str, str], tuple[Any, int]] = {}


def _tf32() -> list[tuple[str, Any, str, Any]]:
    """Through the names that the program itself uses: mixing the old ones and the new ones raises."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    try:
        _ = (matmul.allow_tf32, cudnn.allow_tf32)
    except RuntimeError:
        places: list[tuple[str, Any]] = [("matmul", matmul)]
        places += [(name, getattr(cudnn, name, cudnn)) for name in ("conv", "rnn")]
        return [(name, place, "fp32_precision", "tf32") for name, place in places]
    return [("matmul", matmul, "allow_tf32", True), ("cudnn", cudnn, "allow_tf32", True)]


@contextlib.contextmanager
def _turn(name: str, place: Any, attribute: str, value: Any) -> Iterator[None]:
    key = (name, attribute)
    with _lock:
        found, users = _turned.get(key, (None, 0))
        if not users:
            found = getattr(place, attribute)
            setattr(place, attribute, value)
        _turned[key] = (found, users + 1)
    try:
        yield
    finally:
        with _lock:
            found, users = _turned[key]
            if users == 1:
                setattr(place, attribute, found)
            _turned[key] = (found, users - 1)


@contextlib.contextmanager
def switched(way: Way) -> Iterator[None]:
    """What this way wants of the process, for as long as this lasts."""
    with contextlib.ExitStack() as stack:
        if way.precision == "tf32":
            matmul = torch.backends.cuda.matmul
            # "none" and "ieee" compute the same, but the old switch would leave "ieee" behind, and what was
            # compiled under one is compiled anew under the other.
            word = getattr(matmul, "fp32_precision", None)
            if word is not None:
                stack.callback(setattr, matmul, "fp32_precision", word)
            for one in _tf32():
                stack.enter_context(_turn(*one))
        if way.cudnn_autotune:
            stack.enter_context(_turn("cudnn", torch.backends.cudnn, "benchmark", True))
        if way.attention:
            stack.enter_context(_attention(way.attention))
        yield


def _attention(first: str) -> Any:
    """This kernel first, the others behind it for what it cannot do."""
    attention: Any = importlib.import_module("torch.nn.attention")
    names = [BACKENDS[first], *(name for name in (*BACKENDS.values(), "MATH") if name != BACKENDS[first])]
    order = [getattr(attention.SDPBackend, name) for name in names if hasattr(attention.SDPBackend, name)]
    return attention.sdpa_kernel(order, set_priority=True)


def has_switches(way: Way) -> bool:
    """Whether this way wants anything of the process."""
    return way.precision == "tf32" or way.cudnn_autotune or bool(way.attention)
