"""What outputs are made of: model, functions and data, each by a checksum that another one does not have."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from flatout.infer.whole_sets.reading import readings
from flatout.infer.whole_sets.telling import Telling, unwrapped

# What is said of a part that differs.
_PARTS = {
    "code": "model (its code)",
    "settings": "model (its settings)",
    "weights": "model (its weights)",
    "inputs": "inputs or collate_fn",
    "data": "data set (its samples)",
}
# A thing of which nobody knows what it does, and a sample that cannot be read or is never the same.
_UNKNOWN, _UNREAD = "?", "-"
# Samples that are looked at, from the first to the last, and letters of the checksum of each.
_LOOKED_AT, _LETTERS = 4, 8


def identity(
    module: Any, functions: Sequence[Callable[..., Any] | None], dataset: Any, total: int | None, workers: int
) -> str:
    """One word for each part, as `code=... settings=... weights=... inputs=... data=...`."""
    inputs = Telling()
    inputs.add(tuple(functions))
    return f"{fingerprint(module)} inputs={inputs} data={_of_samples(dataset, total, workers)}"


def fingerprint(module: Any) -> str:
    """The parts of a model: its code, what it was set to, and all of its numbers."""
    module = unwrapped(module)
    if not isinstance(module, torch.nn.Module):
        return f"code={_of_function(module)}"
    code, settings, weights = Telling(), Telling(), Telling()
    code.add_classes(module)
    settings.add_settings(module)
    weights.add_weights(module)
    return f"code={code} settings={settings} weights={weights}"


def _of_function(function: Any) -> str:
    telling = Telling()
    telling.add(function)
    if not telling.unknown:
        return str(telling)
    kinds = ", ".join(sorted(set(telling.unknown)))
    warnings.warn(
        f"flatout.batch_inference could not tell another function from this one, as it refers to {kinds}: "
        "outputs in the folder will not be taken up by a later run",
        stacklevel=2,
    )
    return _UNKNOWN


def _of_samples(dataset: Any, total: int | None, workers: int) -> str:
    """A few of them; what can only be iterated over is not looked at, as it may not give them twice."""
    if not total:
        return _UNREAD
    places = sorted({(total - 1) * number // (_LOOKED_AT - 1) for number in range(_LOOKED_AT)})
    # Twice: some are drawn or changed at random as they are read.
    words = [_of_sample(one) for one in readings(dataset, [*places, *places], workers)]
    first, again = words[: len(places)], words[len(places) :]
    return ".".join(one if one == other else _UNREAD for one, other in zip(first, again, strict=True))


def _of_sample(sample: Any) -> str:
    if isinstance(sample, Exception):
        return _UNREAD
    telling = Telling()
    telling.add(sample)
    return str(telling)[:_LETTERS]


def differing(found: str, wanted: str) -> list[str]:
    """What is another thing in words, empty where outputs of both may lie beside each other."""
    before, now = (dict(part.partition("=")[::2] for part in one.split()) for one in (found, wanted))
    if "code" not in before:
        return ["version of Flatout, which did not look at all of the model and the data"]
    if _UNKNOWN in (before["code"], now["code"]):
        return ["model, or the same: it is a function that refers to what cannot be compared"]
    return [
        words
        for name, words in _PARTS.items()
        if not (_are_alike if name == "data" else str.__eq__)(before.get(name, ""), now.get(name, ""))
    ]


def _are_alike(before: str, now: str) -> bool:
    """Whether all samples that could be read both times are the same."""
    pairs = zip(before.split("."), now.split("."), strict=False)
    return all(one == other or _UNREAD in (one, other) for one, other in pairs)
