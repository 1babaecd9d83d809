"""Runs that are to be compared train on the same samples, whether workers make them or the loop itself.

A data set that draws random numbers (which part of a picture, which way round) draws them from whatever the
process that makes the batch has drawn before. Here they depend on the batch alone: the indices it is made
from. All of the guard's runs do so, and what a run draws elsewhere is as if its data set had drawn nothing.
"""

import contextlib
import functools
import importlib
import random
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from flatout.inside.tap import Patch, undo_all

if TYPE_CHECKING:
    from flatout.inside.session import Session


class SameSamples:
    """Seeds the making of every batch of a map-style data set by its indices."""

    def __init__(self, session: "Session") -> None:
        self._torch = session.torch
        self._seed = session.order.seed or 0
        self._patches: list[Patch] = []

    def install(self) -> None:
        """Patch the fetcher, in the loop and in workers; iterable data sets know of no indices."""
        module: Any = importlib.import_module("torch.utils.data._utils.fetch")
        fetcher = module._MapDatasetFetcher  # noqa: SLF001
        self._patches = [Patch(fetcher, "fetch", self._seeded(fetcher.fetch))]

    def remove(self) -> None:
        """Put the method back."""
        undo_all(self._patches)

    def _seeded(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def fetch(fetcher: Any, index: Any) -> Any:
            with drawing_by(self._torch, zlib.crc32(f"{self._seed} {index}".encode())):
                return real(fetcher, index)

        return fetch


@contextlib.contextmanager
def drawing_by(torch: Any, seed: int) -> Iterator[None]:
    """Random numbers of this seed, then those that would have come; the GPU's are left alone."""
    numpy = sys.modules.get("numpy")
    before = random.getstate(), torch.get_rng_state(), numpy.random.get_state() if numpy else None
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if numpy is not None:
        numpy.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        torch.set_rng_state(before[1])
        if numpy is not None:
            numpy.random.set_state(before[2])
