"""A training step that splits its batch when memory runs out, with the gradients of the whole batch.

An attempt either finishes or leaves nothing behind: gradients, buffers and random numbers are put back, the
exception (whose frames hold the step's tensors) is gone before memory is freed, and the next attempt takes
half the size. Ranks decide together after each attempt.
"""

import contextlib
import dataclasses
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from flatout.inside.out_of_memory import is_out_of_memory
from flatout.memory.agreeing import Ranks, Replicas, refuse_what_strands
from flatout.memory.part_sizes import Sizes
from flatout.memory.restoring import Before, free_what_failed, modules_of, parameters_in
from flatout.memory.splitting import samples_in, shares, sizes_of_parts, split
from flatout.records.errors import CallerMistake, JobFailed

Weigh = Callable[[Any], Any]
# No size was wished for: more than any batch has.
_NO_WISH = 2**62
_warned: weakref.WeakSet[Any] = weakref.WeakSet()


@dataclasses.dataclass(frozen=True)
class Microbatched:
    """How a batch went through."""

    # The weighted mean over the parts: a tensor without history, on its device. `float()` waits for it.
    loss: Any
    parts: int
    # Samples in a part; the last one may have fewer.
    size: int
    # Attempts of this call that ran out of memory, on any rank.
    ran_out: int
    # Whether the parts are smaller than was asked for.
    had_to_split: bool


@dataclasses.dataclass(frozen=True)
class _Outcome:
    """What became of one attempt on this rank."""

    samples: int = 0
    size: int = 0
    parts: int = 0
    loss: Any = None
    ran_out: str = ""
    error: Exception | None = None


class Microbatch:
    """A training step that remembers which size fitted: see `flatout.microbatch` for what it does.

        step = flatout.Microbatch(lambda part: loss_of(model, part), model)
        for batch in loader:
            done = step(batch)            # forward and backward, in parts where it must
            optimizer.step()
            optimizer.zero_grad()

    Where memory ran out once, later batches begin with the size that fitted. When it has lasted for
    `grow_after` batches, twice the size is tried. If that runs out, the old size comes back without a word,
    and the next try waits twice as long.
    """

    def __init__(
        self,
        step: Callable[[Any], Any],
        model: Any,
        *,
        size: int | None = None,
        weigh: str | Weigh = "samples",
        samples: Callable[[Any], int] | None = None,
        group: Any = None,
        grow_after: int = 50,
    ) -> None:
        _check_choices(size, weigh, grow_after)
        self._step = step
        self._model, self._own = as_module(model)
        self._weigh = weigh if callable(weigh) else None
        self._samples = samples
        self._group = group
        self._sizes = Sizes(size, grow_after)
        refuse_what_strands(self._model)

    @property
    def size(self) -> int | None:
        """Samples in a part, for the next batch; None as long as whole batches fit."""
        return self._sizes.now

    def __call__(self, batch: Any) -> Microbatched:
        """Forward and backward for a batch; the gradients are there when it returns."""
        modules = modules_of(self._model)
        replicas = Replicas(self._model)
        with replicas.apart():  # first: replicas begin with the same buffers
            before = Before(self._own or parameters_in(modules), modules)
            try:
                outcome, attempts, anywhere = self._until_it_fits(batch, before, replicas)
                replicas.average(anywhere)
            except BaseException:
                before.leave()
                raise
        before.gradients.add_up()
        if outcome.parts > 1:
            _warn_of_batch_norm(self._model)
        asked = min(self._sizes.asked or outcome.samples, outcome.samples)
        return Microbatched(outcome.loss, outcome.parts, outcome.size, attempts, outcome.size < asked)

    def _until_it_fits(
        self, batch: Any, before: Before, replicas: Replicas
    ) -> tuple[_Outcome, int, list[int]]:
        """Attempt after attempt, each smaller; what came of the last, how many ran out, who has gradients."""
        ranks = Ranks(self._group if self._group is not None else getattr(self._model, "process_group", None))
        size, attempts = self._sizes.next(), 0
        while True:
            outcome = self._attempt(batch, size, ranks.alone, replicas)
            wish = self._sizes.smaller_than(outcome.size) if outcome.ran_out else _NO_WISH
            failed = ranks.rank + 1 if outcome.error is not None else 0
            told = ranks.largest([failed, -wish, outcome.samples, *replicas.has_gradients()])
            failed, size = told[0], -told[1]
            if failed:
                raise outcome.error or failed_elsewhere(failed - 1)
            if size == _NO_WISH:
                self._sizes.went_well(told[2])
                return outcome, attempts, told[3:]
            if size == 0:
                raise _nothing_fits(outcome)
            attempts += 1
            self._sizes.ran_out(size)
            before.begin_again()
            free_what_failed()

    def _attempt(self, batch: Any, limit: int | None, alone: bool, replicas: Replicas) -> _Outcome:
        """One way through all parts. When this returns, nothing holds on to what it computed."""
        samples = size = 0
        try:
            samples = samples_in(batch, self._samples(batch) if self._samples else None)
            size = min(limit or samples, samples)
            parts = split(batch, size, samples)
            loss = self._through(parts, size, samples)
            replicas.make_room()
            return _Outcome(samples, size, len(parts), loss)
        except Exception as error:
            if not is_out_of_memory(error):
                if alone:
                    raise
                # The others must hear of it first.
                return _Outcome(samples, size, error=error)
            text = str(error).partition("\n")[0] or type(error).__name__
        return _Outcome(samples, size, ran_out=text)

    def _through(self, parts: list[Any], size: int, samples: int) -> Any:
        """Forward and backward for each part; the loss of all."""
        weights = [1.0]
        # Weighing asks the device: only where there is something to weigh.
        if len(parts) > 1 and self._weigh is not None:
            weights = shares([float(self._weigh(part)) for part in parts])
        elif len(parts) > 1:
            weights = shares(sizes_of_parts(size, samples))
        # A part without anything that counts has no mean: 0 times it is no number.
        weighed = [(part, share) for part, share in zip(parts, weights, strict=True) if share]
        total = None
        for number, (part, share) in enumerate(weighed, 1):
            with self._quiet(is_last=number == len(weighed)):
                loss = self._step(part)
                check_loss(loss)
                (loss if share == 1 else loss * share).backward()
            told = loss.detach() if share == 1 else loss.detach() * share
            total = told if total is None else total + told
            del loss
        return total

    def _quiet(self, *, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        """For wrappers other than DDP that reduce gradients: once, with the last part."""
        quiet = None if is_last else getattr(self._model, "no_sync", None)
        return contextlib.nullcontext() if quiet is None else quiet()


def as_module(model: Any) -> tuple[Any, list[Any]]:
    """A module, or the parameters of none."""
    import torch

    if isinstance(model, torch.nn.Module) and next(model.parameters(), None) is not None:
        return model, []
    own = list(model) if isinstance(model, Iterable) and not isinstance(model, torch.Tensor) else []
    if not own or not all(isinstance(one, torch.Tensor) for one in own):
        raise CallerMistake(
            f"a model of type {type(model).__qualname__}",
            expected="the torch.nn.Module whose gradients the step computes, or all its parameters",
            remedy="pass the model, or a list of parameters where there are several",
        )
    return None, own


def _check_choices(size: int | None, weigh: Any, grow_after: int) -> None:
    if size is not None and size < 1:
        raise CallerMistake(
            f"size={size}", expected="samples in a part, 1 or more", remedy="leave it out for the whole batch"
        )
    if grow_after < 1:
        raise CallerMistake(
            f"grow_after={grow_after}", expected="1 batch or more", remedy="leave it out for 50 batches"
        )
    if weigh != "samples" and not callable(weigh):
        raise CallerMistake(
            f"weigh={weigh!r}",
            expected='"samples", or a function from a part to what it counts',
            remedy="for a mean over tokens: weigh=lambda part: (part['labels'] != -100).sum()",
        )


def check_loss(loss: Any) -> None:
    """A step that returns anything else would fail later, and less clearly."""
    if not hasattr(loss, "backward") or loss.numel() != 1:
        kind = f"a tensor of shape {tuple(loss.shape)}" if hasattr(loss, "shape") else type(loss).__qualname__
        raise CallerMistake(
            f"a step that returned {kind}",
            expected="the loss of its part: one number, the mean over the part, with its history",
            remedy="return the loss, and do not call backward() in the step",
        )


def _nothing_fits(outcome: _Outcome) -> JobFailed:
    what = f"a single sample runs out of memory: {outcome.ran_out}"
    return JobFailed(
        what if outcome.ran_out else "on another rank a single sample runs out of memory",
        expected="a step that fits into memory with one sample",
        remedy="see what takes the memory with `flatout fit`; shorten samples or checkpoint activations",
    )


def failed_elsewhere(rank: int) -> JobFailed:
    """What the other ranks raise."""
    return JobFailed(
        f"the step failed on rank {rank}, not on this one",
        expected="a step that all ranks get through, or run out of memory in",
        remedy=f"see the error of rank {rank}",
    )


def _warn_of_batch_norm(module: Any) -> None:
    """Once for each model, and only where a batch was really split."""
    import torch

    if module is None or module in _warned:
        return
    kind = torch.nn.modules.batchnorm._BatchNorm  # noqa: SLF001
    if any(isinstance(one, kind) and one.training for one in module.modules()):
        _warned.add(module)
        warnings.warn(
            "the batch was split, and the model has batch norm in training mode: it normalises each part by "
            "itself, which is not the whole batch's mathematics. Group or layer norm would keep it.",
            UserWarning,
            stacklevel=3,
        )
