"""Before a model is served in batches: does it give each item what it would give it alone?

Measured, never assumed: batch normalization in training mode mixes items, padding changes what a model
without a mask sees, and an exported graph may take one size of batch alone. What fails here is not done.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from flatout.infer.serving.collating import Runner, as_numpy
from flatout.infer.serving.wire import Item
from flatout.records.errors import JobFailed

# Of the largest value: how far rounding in another order may move one, by the coarsest type in the model.
_APART = {"float64": 1e-6, "float32": 5e-3, "float16": 3e-2, "bfloat16": 1e-1}
_COARSEST = max(_APART.values())
_FEW = 3


@dataclasses.dataclass(frozen=True)
class Proof:
    """What may be done with a model, and why not more."""

    batches: bool
    notes: tuple[str, ...]


def example_item(runner: Runner, *, shorter: bool = False) -> Item:
    """One item: the factory's own, or one made up; `shorter` where sizes vary."""
    item = {}
    for spec in runner.served.specs:
        given = runner.served.examples.get(spec.name)
        sizes = [
            max(size.least, size.most // _FEW) if shorter and size.varies else size.most
            for size in spec.shape
        ]
        array = spec.example(sizes)
        if given is not None and not spec.problem(tuple(given.shape[1:])):
            own = given[0].float() if given.dtype == torch.bfloat16 else given[0]
            array = own.cpu().numpy()[tuple(slice(size) for size in sizes)] if shorter else own.cpu().numpy()
        item[spec.name] = array
    return item


def prove(runner: Runner) -> Proof:
    """Call it a few times, and turn off what it does not stand; raises JobFailed."""
    if not runner.served.specs:
        return Proof(batches=True, notes=())
    item, notes = example_item(runner), []
    alone = _alone(runner, item)
    batches, words = _takes_batches(runner, item, alone)
    notes += [words] if words else []
    if any(spec.varies for spec in runner.served.specs):
        words = _padding(runner)
        notes += [words] if words else []
    return Proof(batches, tuple(notes))


def _alone(runner: Runner, item: Item) -> dict[str, Any]:
    try:
        return runner([item])[0]
    except Exception as error:  # noqa: BLE001 - told below, if nothing else helps
        one = error
    # A graph that was exported for one size says so in many ways: it is asked for the size of its example.
    given = runner.served.samples or next((len(tensor) for tensor in runner.served.examples.values()), 0)
    for size in (given, 2, 4, 8, 16, 32):
        runner.sizes = (size,) if size > 1 else ()
        try:
            if size > 1:
                return runner([item])[0]
        except Exception:  # noqa: BLE001, S112 - the first error is the one to tell
            continue
    said = (str(one).splitlines() or [""])[0][:300]
    raise JobFailed(
        f"{', '.join(map(str, runner.served.specs))} makes the model fail: {type(one).__name__}: {said}",
        expected="an answer with one row for each item of a batch",
        remedy="compare --input or the example inputs with what it takes; --debug shows where it failed",
    ) from one


def _takes_batches(runner: Runner, item: Item, alone: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether other items in the batch leave this one's answer as it was.

    Beside others and beside its like the same kernels run, in which types ever: only what is mixed differs.
    Alone, others may run, and round otherwise.
    """
    if runner.sizes:
        return True, f"it takes batches of {runner.sizes[0]} alone: smaller ones are filled up"
    try:
        beside = runner([item, _other(item), _other(item)])[0]
        beside_its_like = runner([item, item, item])[0]
    except Exception as error:  # noqa: BLE001 - whatever it does not like
        said = (str(error).splitlines() or [""])[0][:200]
        return False, f"no batches: it takes one item at a time ({type(error).__name__}: {said})"
    words = _differ(beside_its_like, beside) or _differ(alone, beside, _COARSEST)
    return not words, f"no batches: items change each other's answers ({words})" if words else ""


def _padding(runner: Runner) -> str:
    """Learn which outputs grow with the input; turn padding off where it changes answers."""
    if not runner.pads:
        return "items of different sizes do not share a batch; --pad says what they may be filled up with"
    pads, runner.pads = runner.pads, {}
    short, long = example_item(runner, shorter=True), example_item(runner)
    less, more = runner([short])[0], runner([long])[0]
    _learn(runner, (short, less), (long, more))
    runner.pads = pads
    # Beside a longer one of the same bucket it would be padded so far, at most.
    words = _differ(less, _within(runner, short, long), _apart_in(runner.served.call))
    if words:
        runner.pads, runner.follows = {}, {}
        return f"no padding: it changes answers ({words}); items of different sizes do not share a batch"
    return ""


def _within(runner: Runner, short: Item, long: Item) -> dict[str, Any]:
    """The short item's answer where it is padded as far as the long one."""
    widths = {spec.name: long[spec.name].shape for spec in runner.served.specs}
    padded = {}
    for name, array in short.items():
        whole = np.full(widths[name], runner.pads.get(name, 0), dtype=array.dtype)
        whole[tuple(slice(length) for length in array.shape)] = array
        padded[name] = whole
    outputs = runner.called(
        {spec.name: runner.tensor(spec, padded[spec.name][None]) for spec in runner.served.specs}
    )
    return runner.own({name: as_numpy(value) for name, value in outputs.items()}, 0, short)


def _learn(
    runner: Runner, first: tuple[Item, Mapping[str, Any]], second: tuple[Item, Mapping[str, Any]]
) -> None:
    inputs = [
        (spec.name, along)
        for spec in runner.served.specs
        for along, size in enumerate(spec.shape)
        if size.varies
    ]
    for name, value in first[1].items():
        shapes = (np.shape(value), np.shape(second[1][name]))
        for dimension, (less, more) in enumerate(zip(*shapes, strict=False)):
            for source, along in inputs:
                if less != more and (less, more) == (
                    first[0][source].shape[along],
                    second[0][source].shape[along],
                ):
                    runner.follows[name, dimension] = (source, along)
                    break


def _other(item: Item) -> Item:
    """An item that is not this one."""
    return {name: array[..., ::-1].copy() if array.ndim else array for name, array in item.items()}


def _apart_in(model: Any) -> float:
    """What rounding may do in a model with such parameters; of a function nothing is known."""
    if not isinstance(model, torch.nn.Module):
        return 0.0
    kinds = {str(one.dtype).removeprefix("torch.") for one in (*model.parameters(), *model.buffers())}
    return max((_APART.get(kind, 0.0) for kind in kinds), default=0.0)


def _differ(one: Mapping[str, Any], other: Mapping[str, Any], apart_at_least: float = 0.0) -> str:
    """In which output, and by how much, they are further apart than rounding is in its type."""
    for name, value in one.items():
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            if np.shape(value) != np.shape(other[name]) or not np.array_equal(value, other[name]):
                return f"{name} differs"
            continue
        if value.shape != np.shape(other[name]):
            return f"{name} has shape {value.shape}, then {np.shape(other[name])}"
        mine, its = value.astype(float), other[name].astype(float)
        # What is the same, infinities and what is no number among it, is nothing apart.
        differs = ~((mine == its) | (np.isnan(mine) & np.isnan(its)))
        scale = float(np.max(np.abs(mine), initial=0.0, where=np.isfinite(mine))) or 1.0
        apart = float(np.max(np.abs(mine[differs] - its[differs]), initial=0.0)) / scale
        if not apart <= max(apart_at_least, _APART.get(str(value.dtype), _COARSEST)):
            return f"{name} moves by {apart:.2g} of its largest value"
    return ""
