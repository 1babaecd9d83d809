"""Switches of the whole process, turned for the length of a call; several threads may want them."""

import contextlib
import importlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from flatout.infer.optimizing.ways import Way
from flatout.levers.attention_kernels import BACKENDS

# An object, the name of a switch in it, and a value.
Setting = tuple[Any, str, Any]

_lock = threading.Lock()
# By group: what puts back what was found, and how many calls want it otherwise.
_turned: dict[str, tuple[contextlib.ExitStack, int]] = {}


@contextlib.contextmanager
def switched(way: Way) -> Iterator[None]:
    """What this way wants of the process, for as long as this lasts."""
    with contextlib.ExitStack() as stack:
        if way.precision == "tf32":
            stack.enter_context(_turn("tf32", lambda: _set(_tf32())))
        if way.cudnn_autotune:
            stack.enter_context(_turn("autotune", lambda: _set([(torch.backends.cudnn, "benchmark", True)])))
        if way.attention:
            # Where others run with another one first, it stays theirs: any of them is right.
            stack.enter_context(_turn("attention", lambda: _attention(way.attention)))
        yield


def has_switches(way: Way) -> bool:
    """Whether this way wants anything of the process."""
    return way.precision == "tf32" or way.cudnn_autotune or bool(way.attention)


@contextlib.contextmanager
def _turn(group: str, how: Callable[[], contextlib.AbstractContextManager[Any]]) -> Iterator[None]:
    """The first one in turns them, the last one out puts back what the first one found."""
    with _lock:
        stack, users = _turned.get(group, (contextlib.ExitStack(), 0))
        if not users:
            stack.enter_context(how())
        _turned[group] = (stack, users + 1)
    try:
        yield
    finally:
        with _lock:
            stack, users = _turned[group]
            _turned[group] = (stack, users - 1)
            if users == 1:
                stack.close()


@contextlib.contextmanager
def _set(settings: list[Setting]) -> Iterator[None]:
    found = [(place, name, getattr(place, name)) for place, name, _ in settings]
    for place, name, value in settings:
        setattr(place, name, value)
    yield
    for place, name, value in found:
        setattr(place, name, value)


def _tf32() -> list[Setting]:
    """Through the names that the program itself uses: mixing the old ones and the new ones raises."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    try:
        _ = (matmul.allow_tf32, cudnn.allow_tf32)
    except RuntimeError:
        places: list[Any] = [matmul, *(getattr(cudnn, name, cudnn) for name in ("conv", "rnn"))]
        return [(place, "fp32_precision", "tf32") for place in places]
    old: list[Setting] = [(matmul, "allow_tf32", True), (cudnn, "allow_tf32", True)]
    # The old switch would leave "ieee" behind where it found "none": that computes the same, but what was
    # compiled under one is compiled anew under the other.
    return [*old, (matmul, "fp32_precision", "tf32")] if hasattr(matmul, "fp32_precision") else old


def _attention(first: str) -> Any:
    """This kernel first, the others behind it for what it cannot do."""
    attention: Any = importlib.import_module("torch.nn.attention")
    names = [BACKENDS[first], *(name for name in (*BACKENDS.values(), "MATH") if name != BACKENDS[first])]
    order = [getattr(attention.SDPBackend, name) for name in names if hasattr(attention.SDPBackend, name)]
    return attention.sdpa_kernel(order, set_priority=True)
