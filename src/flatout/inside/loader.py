"""The loader tap: how long the training loop waits in `next()` of a DataLoader's iterator.

The method is patched, not wrapped: the iterator keeps its type, its attributes and its identity.
"""

import importlib
from typing import TYPE_CHECKING, Any

from flatout.inside.tap import Patch, timed

if TYPE_CHECKING:
    from flatout.inside.session import Session


class LoaderTap:
    """Adds the time in `next()` to the step under way."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._patch: Patch | None = None

    def install(self) -> None:
        """Patch the one method that every kind of DataLoader iterator shares."""
        base: Any = importlib.import_module("torch.utils.data.dataloader")._BaseDataLoaderIter  # noqa: SLF001
        self._patch = Patch(base, "__next__", timed(self._session, "loader", base.__next__, self._note))

    def remove(self) -> None:
        """Put the method back."""
        if self._patch is not None:
            self._patch.undo()

    def _note(self, started_ns: int, ended_ns: int, _args: Any, _result: Any) -> None:
        draft = self._session.draft
        draft.loader_ns += ended_ns - started_ns
        draft.loader_batches += 1
