"""What `flatout.parallel` returns: a training that several processes or devices share."""

import atexit
import contextlib
import os
from pathlib import Path
from typing import Any

from flatout.runtime.parallel.clipping import clip
from flatout.runtime.parallel.data import Placed
from flatout.runtime.parallel.joining import Joined, Watch
from flatout.runtime.parallel.parameters import Layout
from flatout.runtime.parallel.saving import load_model, load_optimizer, whole_model, whole_optimizer
from flatout.runtime.parallel.wrapped import Wrapped, mark
from flatout.runtime.stopping import Stopped


class World:
    """A model, its optimizer and its loader, ready to train on all ranks; see `flatout.parallel`."""

    def __init__(
        self,
        strategy: str,
        wrapped: Wrapped,
        placed: Placed,
        *,
        reason: str,
        loader: Any,
        layout: Layout | None,
        names: tuple[str, ...],
    ) -> None:
        # Which strategy, why, and what it did to the model and the data.
        self.strategy = strategy
        self.reason = "; ".join(words for words in (reason, wrapped.reason, placed.words) if words)
        self.loader = loader
        self._wrapped = wrapped
        self._placed = placed
        self._layout = layout
        self._names = names
        self._joined: Joined = wrapped.joined
        self._watch = Watch(self._joined)
        self._is_open = True
        mark(wrapped.bare)
        atexit.register(self._at_exit)

    @property
    def model(self) -> Any:
        """The model to call."""
        return self._wrapped.model

    @property
    def bare(self) -> Any:
        """The same model without a wrapper around it."""
        return self._wrapped.bare

    @property
    def optimizer(self) -> Any:
        """The optimizer, with the parameters that this rank trains."""
        return self._wrapped.optimizer

    @property
    def rank(self) -> int:
        """This process among all, from 0."""
        return self._joined.rank

    @property
    def count(self) -> int:
        """How many processes there are."""
        return self._joined.count

    @property
    def is_main(self) -> bool:
        """Whether this is the one that prints and saves."""
        return self._joined.rank == 0

    @property
    def device(self) -> Any:
        """Where batches belong."""
        return self._wrapped.device

    # Training

    def accumulating(self, *, last: bool) -> contextlib.AbstractContextManager[None]:
        """Around forward and backward of part of a larger batch; gradients travel with the `last` alone.

        Divide each loss by the number of parts. With FSDP, gradients stay whole on each rank meanwhile.
        """
        return self._wrapped.accumulating(last=last)

    def train_step(self, batch: Any, target: Any, loss_fn: Any) -> Any:
        """Forward and backward by any strategy; the loss, on all ranks. The optimizer's step is yours.

        A pipeline cannot be called like a model: this is its way to train. `batch` is a tensor, a tuple of
        arguments or a dict of keywords; `loss_fn(output, target)` gives the mean over its samples.
        """
        return self._wrapped.train_step(batch, target, loss_fn)

    def clip(self, most: float) -> Any:
        """Scale all gradients so that their norm over all ranks and parameters is at most this; the norm."""
        return clip(self._wrapped, most)

    def mean(self, value: Any) -> Any:
        """The mean of a number over all ranks, on all ranks: a tensor without history."""
        import torch
        import torch.distributed as dist

        told = torch.as_tensor(value).detach().to(self._joined.device, copy=True)
        told = told if told.is_floating_point() else told.double()
        if self.count > 1:
            dist.all_reduce(told)
            told /= self.count
        return told

    def barrier(self, timeout_s: float | None = None) -> None:
        """Until all ranks are here; raises JobFailed that names who failed, or who did not come in time."""
        self._joined.barrier(timeout_s)

    # Saving

    def state_dict(self) -> dict[str, Any]:
        """Model and optimizer, put together on the first rank and the host; empty on the others.

        All ranks must call it. `load_state_dict` of the plain model and optimizer take its parts, in one
        process, without Flatout.
        """
        state = {"model": whole_model(self._wrapped, self._names)}
        if self._layout is not None:
            state["optimizer"] = whole_optimizer(self._wrapped, self._layout)
        return state if self.is_main else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what `state_dict()` gave on the first rank of any number; each rank keeps its part."""
        load_model(self._wrapped, state["model"], self._names)
        if self._layout is not None and state.get("optimizer"):
            load_optimizer(self._wrapped, state["optimizer"], self._layout)

    def save(self, path: str | Path, **more: Any) -> None:
        """Write `state_dict()` and `more` to a file, from the first rank, whole or not at all (torch.save).

        All ranks must call it, and return when the file is there.
        """
        state = {**self.state_dict(), **more}
        if self.is_main:
            _written(state, Path(path))
        self.barrier()

    def load(self, path: str | Path) -> dict[str, Any]:
        """Load what `save` wrote, on any number of ranks; what was saved beside model and optimizer."""
        import torch

        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        self.load_state_dict(state)
        return {key: value for key, value in state.items() if key not in ("model", "optimizer")}

    # The end

    def close(self) -> None:
        """Wait for the others, put back what can be, and leave; raises JobFailed if another rank failed."""
        if not self._is_open:
            return
        try:
            self.barrier()
        finally:
            self._leave(failed=False)

    def _leave(self, *, failed: bool) -> None:
        self._is_open = False
        atexit.unregister(self._at_exit)
        self._placed.undo()
        self._wrapped.close()
        mark(self._wrapped.bare, on=False)
        self._watch.leave()
        self._joined.leave(failed=failed)

    def _at_exit(self) -> None:
        if self._watch.has_failed:
            self._leave(failed=True)
        else:
            self.close()

    def __enter__(self) -> "World":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.close()
            return
        # Ranks that were asked to stop leave together: that is no failure.
        failed = not isinstance(error, Stopped)
        if failed:
            self._watch.note(error)
        self._leave(failed=failed)

    def __repr__(self) -> str:
        return f"<{self.strategy}, rank {self.rank} of {self.count}: {self.reason}>"


def _written(state: dict[str, Any], path: Path) -> None:
    """Beside it first: torch.save over a file destroys it when it fails."""
    import torch

    from flatout.records.errors import CannotWrite

    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise CannotWrite(path, error, remedy="free some room or choose another folder") from error
        raise
