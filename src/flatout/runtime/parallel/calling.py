"""What a block is called with, and which of its linear layers read what, seen in one forward pass."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

from flatout.records.errors import CallerMistake
from flatout.runtime.parallel.nested import to
from flatout.runtime.parallel.wrapped import Job, call

# A small input of our own, where no sample was given.
_SAMPLES, _LENGTH = 2, 8


@dataclasses.dataclass(frozen=True)
class Reading:
    """A call of a linear layer: its name in the block, and which tensor it read (equal for the same one)."""

    name: str
    read: int


@dataclasses.dataclass(frozen=True)
class Called:
    """A block's arguments, and its linear layers in the order of their calls."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    readings: tuple[Reading, ...]

    @property
    def linears(self) -> tuple[str, ...]:
        """Names in the order of their calls."""
        return tuple(one.name for one in self.readings)


def called_with(job: Job, block: Any) -> Called:
    """Call the model with the sample, or the block with an input of our own, and look on."""
    import torch

    if job.sample is None:
        made_up = _made_up(block, job.joined.device)
        return _look_on(
            block, lambda: block(*made_up), "a block that cannot be called with an input of our own"
        )
    sample = to(job.sample, job.joined.device)
    with _as_in_evaluation(job.model):
        run = functools.partial(torch.no_grad()(call), job.model, sample)
        return _look_on(block, run, "a model that cannot be called with this sample")


def _look_on(block: Any, run: Callable[[], Any], if_it_fails: str) -> Called:
    import torch

    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    readings: list[Reading] = []
    kept: list[Any] = []  # as long as they live, no two have the same id

    def on_block(_module: Any, args: Any, kwargs: Any) -> None:
        if not seen:
            seen.append((args, dict(kwargs)))

    def on_linear(name: str) -> Any:
        def look(_module: Any, args: Any) -> None:
            kept.append(args[0])
            readings.append(Reading(name, id(args[0])))

        return look

    hooks = [block.register_forward_pre_hook(on_block, with_kwargs=True)]
    for name, module in block.named_modules():
        if isinstance(module, torch.nn.Linear):
            hooks.append(module.register_forward_pre_hook(on_linear(name)))
    try:
        with _as_in_evaluation(block), torch.no_grad():
            run()
    except Exception as error:
        raise CallerMistake(
            f"{if_it_fails}: {type(error).__name__}: {error}",
            expected="a sample of what the model is called with",
            remedy="sample=next(iter(loader))[0], or whatever model(...) takes: a tensor, a tuple, a dict",
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    if not seen:
        raise CallerMistake(
            "a sample with which the model does not call its first block",
            expected="what the model is called with in training",
            remedy="give such a sample",
        )
    return Called(*seen[0], tuple(readings))


def _made_up(block: Any, device: Any) -> tuple[Any, ...]:
    import torch

    width = next((one.in_features for one in block.modules() if isinstance(one, torch.nn.Linear)), 1)
    dtype = next(one.dtype for one in block.parameters())
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(_SAMPLES, _LENGTH, width, generator=generator, device="cpu")
    return (drawn.to(device, dtype),)


@contextlib.contextmanager
def _as_in_evaluation(module: Any) -> Iterator[None]:
    """Nothing is dropped, and no statistics are counted."""
    training = [one for one in module.modules() if one.training]
    module.eval()
    try:
        yield
    finally:
        for one in training:
            one.training = True
