"""Before a model is served in batches: does it give each item what it would give it alone?

Measured, never assumed: batch normalization in training mode mixes items, padding changes what a model
without a mask sees, and an exported graph may take one size of batch alone. What fails here is not done.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from flatout.infer.failing import words_of
from flatout.infer.serving.collating import Runner, as_numpy
from flatout.infer.serving.company import Companies, companies
from flatout.infer.serving.padding import settle_padding
from flatout.infer.serving.wire import Item
from flatout.records.errors import JobFailed

# Of the largest value: how far rounding in another order may move one, by the coarsest type in the model.
_APART = {"float64": 1e-6, "float32": 5e-3, "float16": 3e-2, "bfloat16": 1e-1}
_COARSEST = max(_APART.values())
# An item among others, with one before and one behind it.
_BATCH = 3


@dataclasses.dataclass(frozen=True)
class Proof:
    """What may be done with a model, and why not more."""

    batches: bool
    notes: tuple[str, ...]


def example_item(runner: Runner) -> Item:
    """One item: the factory's own, or one made up."""
    item = {}
    for spec in runner.served.specs:
        given = runner.served.examples.get(spec.name)
        if given is not None and not spec.problem(tuple(given.shape[1:])):
            item[spec.name] = as_numpy(given[0])
        else:
            item[spec.name] = spec.example()
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
        apart = _apart_in(runner.served.call)
        words = settle_padding(runner, item, lambda one, other: _differ(one, other, apart))
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
    """Whether other items in the batch leave this one's answer as it was."""
    count = runner.sizes[0] if runner.sizes else _BATCH
    try:
        like = _answer(runner, item, item, count)
    except Exception as error:  # noqa: BLE001 - whatever it does not like
        return False, f"no batches: it takes one item at a time ({words_of(error)})"
    # Alone, other kernels may run than in a batch, and round otherwise.
    words, refused = _differ(alone, like, _COARSEST), None
    specs = {spec.name: spec for spec in runner.served.specs}
    for others in companies(specs, item) if not words else ():
        try:
            words, refused = _mixed(runner, item, like, others, count), None
            break
        except Exception as error:  # noqa: BLE001 - a gentler one may do
            refused = error
    if refused is not None:
        return False, f"no batches: it takes one item at a time ({words_of(refused)})"
    if words:
        return False, f"no batches: items change each other's answers ({words})"
    return True, f"it takes batches of {count} alone: smaller ones are filled up" if runner.sizes else ""


def _mixed(runner: Runner, item: Item, like: Mapping[str, Any], others: Companies, count: int) -> str:
    """By how much company changes an answer; empty where it does not.

    Beside others and beside its like the same kernels run, in which types ever: only what is mixed differs.
    """
    one, another = (_answer(runner, item, other, count) for other in others)
    words = _differ(like, one) or _differ(like, another) or _differ(one, another)
    # What is largest of all, or 0, hides what it gets from others: so each of these is looked at as well.
    for mine, its in (others, others[::-1]):
        words = words or _differ(_answer(runner, mine, mine, count), _answer(runner, mine, its, count))
    return words


def _answer(runner: Runner, item: Item, other: Item, count: int) -> dict[str, Any]:
    """The item's own, in the middle of others: some models pass on from row to row."""
    place = count // 2
    return runner([*[other] * place, item, *[other] * (count - place - 1)])[place]


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
