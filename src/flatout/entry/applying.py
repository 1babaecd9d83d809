"""`flatout.apply`: a plan in a process of one's own, on objects that one has at hand."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flatout.inside.loader_anew import loader_with
from flatout.inside.scene import Scene
from flatout.inside.seats import Seat
from flatout.records.plan import Plan, read_plan
from flatout.records.session import Order

# Done before Python starts, or by whoever starts it.
_NOT_HERE = {"batch-size": "the batch size is yours to set: give the loader the new size"}


@dataclasses.dataclass
class Applied:
    """What a plan was applied to: unpacks to model, optimizer and loader."""

    model: Any
    optimizer: Any
    loader: Any
    # Levers that are on, and those that could not be applied or failed since, with the reason.
    _facts: dict[str, Any]
    _scene: Scene
    _seat: Seat | None

    def __iter__(self) -> Iterator[Any]:
        return iter((self.model, self.optimizer, self.loader))

    @property
    def levers(self) -> tuple[str, ...]:
        """What is on."""
        return tuple(name for name, facts in self._facts.items() if "dropped" not in facts)

    @property
    def dropped(self) -> dict[str, str]:
        """What is not, and why."""
        return {name: facts["dropped"] for name, facts in self._facts.items() if "dropped" in facts}

    def undo(self) -> None:
        """Take everything off again; a loader that was made anew stays what it is."""
        self._scene.end()
        if self._seat is not None:
            self._seat.leave()


def apply(plan: Plan | str | Path, model: Any, optimizer: Any = None, loader: Any = None) -> Applied:
    """Apply a plan of `flatout tune` to a model, its optimizer and its loader, in this process.

        model, optimizer, loader = flatout.apply("flatout.toml", model, optimizer, loader)

    Call it when the model is on its device. It acts on calls that train: evaluation runs as written. A lever
    that does not hold here is left out with a reason, one that fails later is taken off, and the call is run
    as written: see `dropped` of what this returns.
    """
    import torch

    if not isinstance(plan, Plan):
        plan = read_plan(Path(plan))
    mine = [choice for choice in plan.levers if choice.id not in ("loader", *_NOT_HERE)]
    session: Any = SimpleNamespace(
        torch=torch,
        order=Order(folder="", levers=tuple(choice.order() for choice in mine)),
        facts={},
        log=SimpleNamespace(add=lambda _event: None),
    )
    scene = Scene(session)
    facts: dict[str, Any] = session.facts["levers"]
    if optimizer is not None:
        scene.optimizer_made(optimizer)
    seat = scene.sit(model)
    for choice in plan.levers:
        if choice.id == "loader":
            reason = "no loader was given"
            if loader is not None:
                loader, reason = loader_with(loader, choice.settings)
            facts["loader"] = {"dropped": reason} if reason else {"applied": True}
        elif choice.id in _NOT_HERE:
            facts[choice.id] = {"dropped": _NOT_HERE[choice.id]}
    return Applied(model, optimizer, loader, facts, scene, seat)
