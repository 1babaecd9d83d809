"""Our profiler starts without a word, whatever torch has to say about it."""

import types
import warnings
from typing import Any

import pytest

from flatout.inside.window import start_quietly


class Talking:
    """A profiler that warns when it starts, by torch's own way of doing that once."""

    def __init__(self, module: Any) -> None:
        self._module, self.started = module, False

    def start(self) -> None:
        if hasattr(self._module, "_warn_once"):
            self._module._warn_once("events are cleared")
        self.started = True


def a_torch(**names: Any) -> Any:
    return types.SimpleNamespace(profiler=types.SimpleNamespace(profiler=types.SimpleNamespace(**names)))


def test_a_warning_of_torchs_does_not_reach_the_script() -> None:
    torch = a_torch(_warn_once=lambda text: warnings.warn(text, stacklevel=2))
    real, filters = torch.profiler.profiler._warn_once, list(warnings.filters)
    profiler = Talking(torch.profiler.profiler)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        start_quietly(torch, profiler)
    assert profiler.started
    assert seen == []
    assert torch.profiler.profiler._warn_once is real
    assert warnings.filters == filters


def test_a_torch_that_says_nothing_is_left_as_it_is() -> None:
    torch = a_torch()
    profiler = Talking(torch.profiler.profiler)
    start_quietly(torch, profiler)
    assert profiler.started
    assert not hasattr(torch.profiler.profiler, "_warn_once")


def test_a_profiler_that_cannot_start_leaves_torch_as_it_was() -> None:
    torch = a_torch(_warn_once=print)

    class Broken:
        def start(self) -> None:
            raise RuntimeError("busy")

    with pytest.raises(RuntimeError, match="busy"):
        start_quietly(torch, Broken())
    assert torch.profiler.profiler._warn_once is print
