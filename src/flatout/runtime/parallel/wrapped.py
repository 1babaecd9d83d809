"""What a strategy hands back: a model that is ready to train, and what differs about it."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

from flatout.records.errors import CallerMistake
from flatout.runtime.parallel.joining import Joined

# Which samples ranks see: each its own part, all the same ones, or whatever the loader gives.
Data = Literal["apart", "alike", "as it is"]


@dataclasses.dataclass(frozen=True)
class Job:
    """What was handed over, and where it runs."""

    joined: Joined
    model: Any
    optimizer: Any
    # A batch as the model is called with, where one was given: a tensor, a tuple or a dict.
    sample: Any = None


class Wrapped:
    """A model as its strategy left it. This one is left as it is: strategies override what differs."""

    data: Data = "as it is"

    @classmethod
    def wanted_alone(cls, options: Any) -> bool:  # noqa: ARG003 - others need it
        """Whether one process is wrapped as well: where it is asked for what nothing else does."""
        return False

    def __init__(self, job: Job, *, reason: str, model: Any = None) -> None:
        self.joined = job.joined
        # What to call, and the same without anything around it.
        self.model = job.model if model is None else model
        self.bare = job.model
        self.optimizer = job.optimizer
        self.reason = reason
        # Where batches belong.
        self.device = job.joined.device

    @contextlib.contextmanager
    def accumulating(self, *, last: bool) -> Iterator[None]:  # noqa: ARG002 - others need it
        """Around forward and backward of a part of a batch: gradients travel with the last part alone."""
        yield

    def train_step(self, batch: Any, target: Any, loss_fn: Any) -> Any:
        """Forward and backward; the loss, without history."""
        loss = loss_fn(call(self.model, batch), target)
        loss.backward()
        return loss.detach()

    def mine(self) -> dict[str, Any]:
        """The state of the model as this rank has it, by the names of the model as it was written."""
        state: dict[str, Any] = self.bare.state_dict()
        return state

    def kept(self) -> dict[str, Any]:
        """What this rank keeps of a state that is loaded: more than `mine` where several hold the same."""
        return self.mine()

    @property
    def spread_by_name(self) -> bool:
        """Whether ranks hold different names, not different parts of the same ones."""
        return False

    def held_by(self) -> dict[str, int]:
        """Of parameters that several ranks hold where others hold none of it, how many do."""
        return {}

    def close(self) -> None:
        """Put back what can be put back."""


def call(model: Any, batch: Any) -> Any:
    """The model's answer to a tensor, a tuple of arguments or a dict of keywords."""
    if isinstance(batch, dict):
        return model(**batch)
    if isinstance(batch, tuple | list):
        return model(*batch)
    return model(batch)


def insist_on_fresh(model: Any) -> None:
    """Raises CallerMistake for a model that is parallel already."""
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    below = list(model.modules())
    kind = ""
    if any(isinstance(one, DistributedDataParallel | DataParallel) for one in below):
        kind = "in DistributedDataParallel"
    elif any(hasattr(one, "to_local") for one in model.parameters()) or getattr(model, _MARK, None):
        kind = "spread over ranks or devices"
    if kind:
        raise CallerMistake(
            f"a model that is {kind} already ({type(model).__qualname__})",
            expected="a model as it was written; flatout.parallel is called once for each",
            remedy="use `.model` of what the first call returned, or leave your own wrapping out",
        )


_MARK = "_flatout_parallel"


def mark(model: Any, *, on: bool = True) -> None:
    """Remember that it was wrapped, where the wrapping itself does not show."""
    if on:
        vars(model)[_MARK] = True
    else:
        vars(model).pop(_MARK, None)
