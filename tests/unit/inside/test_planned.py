"""How many updates are planned, as far as a trainer on the stack says."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from flatout.inside.planned import updates_planned


def trainer_of(module: str, **facts: Any) -> Any:
    """A class of that name and home: the frameworks' own take seconds to import."""
    kind = type("Trainer", (), {"__module__": module, "fit": lambda self: updates_planned(sys._getframe())})
    found: Any = kind()
    vars(found).update(facts)
    return found


@pytest.mark.parametrize(
    ("module", "facts", "planned"),
    [
        ("transformers.trainer", {"state": SimpleNamespace(max_steps=120)}, 120),
        ("lightning.pytorch.trainer.trainer", {"max_steps": 50, "estimated_stepping_batches": 99}, 50),
        ("lightning.pytorch.trainer.trainer", {"max_steps": -1, "estimated_stepping_batches": 99}, 99),
        (
            "pytorch_lightning.trainer.trainer",
            {"max_steps": -1, "estimated_stepping_batches": float("inf")},
            None,
        ),
        ("my_own_code", {"state": SimpleNamespace(max_steps=120)}, None),
    ],
)
def test_a_trainer_is_asked(module: str, facts: dict[str, Any], planned: int | None) -> None:
    assert trainer_of(module, **facts).fit() == planned


def test_a_trainer_that_was_derived_from_is_asked_too() -> None:
    base = type(trainer_of("transformers.trainer"))
    mine: Any = type("MyTrainer", (base,), {"__module__": "train"})()
    mine.state = SimpleNamespace(max_steps=7)
    assert mine.fit() == 7


def test_a_loop_of_ones_own_plans_nothing() -> None:
    assert updates_planned(sys._getframe()) is None
