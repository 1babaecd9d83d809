"""What a training's tensors were like when they were first seen: some are meant to hold what is no number."""

import dataclasses
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from flatout.runtime.finite.gradients import are_finite, plain_values
from flatout.runtime.finite.snapshot import Path, Training, norms_of, numbers_in

# After so many times, values that are no numbers are what a buffer is meant to hold.
_REPAIRS = 3


@dataclasses.dataclass
class _Seen:
    """A tensor, and what it was like at first."""

    tensor: weakref.ref[Any]
    was_finite: bool
    norm: float = 0.0
    changes: bool = False


class FirstSeen:
    """What is known of a training's tensors since they were first seen."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._seen: dict[int, _Seen] = {}
        # Buffers, by module and name, that are meant to hold what is no number.
        self._meant: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()
        self._known: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()
        self._repairs = 0
        # Places of optimizers' states that were looked at, and those that held what is no number at first.
        self._known_states: set[Path] = set()
        self._unbounded: set[Path] = set()

    def meant_to_be_finite(self, tensors: Sequence[Any]) -> list[Any]:
        """Without those that were not from the start."""
        return [one for one in tensors if self._first_look(one).was_finite]

    def states_meant_to_be_finite(self, states: Mapping[Path, Any]) -> list[Any]:
        """Likewise, by their places: an optimizer may begin with the largest or smallest number there is."""
        new = {path: one for path, one in states.items() if path not in self._known_states}
        self._known_states.update(new)
        if bool(are_finite(self._torch, list(new.values()))):
            self._unbounded.update(path for path, one in new.items() if bool(are_finite(self._torch, [one])))
        return [one for path, one in states.items() if path not in self._unbounded]

    def changing(self, training: Training) -> list[Any]:
        """Parameters that no optimizer has, and that change all the same."""
        unheld = training.unheld()
        for one, norm in zip(unheld, norms_of(self._torch, unheld), strict=True):
            seen = self._first_look(one, norm)
            seen.changes = seen.changes or not (norm == seen.norm or norm != norm)  # or NaN
        return [one for one in unheld if self._first_look(one).changes]

    def spoiled(self, buffers: Mapping[Any, Any]) -> list[str]:
        """Names of those that hold what is no number, and did not at first; they go by model and name.

        Masks hold infinities for good: only what a norm has counted must be finite.
        """
        values = [plain_values(self._torch, one.detach()) for one in buffers.values()]
        marks = [
            None if one is None else (one.isnan() if masks else ~one.isfinite()).any().float()
            for one, masks in zip(values, map(self._may_be_a_mask, buffers), strict=True)
        ]
        found = []
        for (model, name), mark in zip(buffers, numbers_in(self._torch, marks), strict=True):
            known, meant = self._known.setdefault(model, set()), self._meant.setdefault(model, set())
            if mark and (name not in known or self._repairs >= _REPAIRS):
                meant.add(name)
            if mark and name not in meant:
                found.append(name)
            known.add(name)
        return found

    def _may_be_a_mask(self, place: tuple[Any, str]) -> bool:
        model, name = place
        owner = model.get_submodule(name.rpartition(".")[0])
        return not isinstance(owner, self._torch.nn.modules.batchnorm._NormBase)  # noqa: SLF001

    def count_repair(self) -> None:
        """Buffers were put back."""
        self._repairs += 1

    def _first_look(self, tensor: Any, norm: float = 0.0) -> _Seen:
        seen = self._seen.get(id(tensor))
        if seen is None or seen.tensor() is not tensor:
            was_finite = not bool(are_finite(self._torch, [tensor]))
            seen = self._seen[id(tensor)] = _Seen(weakref.ref(tensor), was_finite, norm)
        return seen
