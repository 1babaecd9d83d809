"""Settings of a library that stand for levers of a plan: a dict to be splatted, which can explain itself."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flatout.records.plan import Choice, Plan, read_plan

# From a lever's settings to those of a library, and what it does there, in words.
Switch = Callable[[dict[str, Any]], dict[str, Any]]
Switches = Mapping[str, tuple[Switch, str]]


class Settings(dict[str, Any]):
    """Arguments by name; `reasons` says of each why it is there, `left` which levers have no such switch."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: dict[str, str] = {}
        self.left: dict[str, str] = {}


def plan_of(plan: Plan | str | Path | None) -> Plan | None:
    """The plan, or that of a file; a broken one is named with what is wrong in it."""
    return plan if plan is None or isinstance(plan, Plan) else read_plan(Path(plan))


def settings_for(plan: Plan | str | Path, switches: Switches) -> Settings:
    """What these switches make of a plan."""
    found = Settings()
    whole = plan_of(plan)
    for choice in whole.levers if whole is not None else ():
        switch, words = switches.get(choice.id, (None, ""))
        given = switch(choice.settings) if switch is not None else {}
        if not given:
            found.left[choice.id] = _left(choice)
        found |= given
        found.reasons |= {name: f"{choice.words()}: {words}" for name in given}
    return found


def _left(choice: Choice) -> str:
    if choice.id == "batch-size":
        return "it changes the training: set the size where you make the loader"
    if choice.id == "loader":
        return "set it where you make the DataLoader"
    return "no switch of the library is the same: the callback applies it"


def always(**given: Any) -> Switch:
    """A switch that the lever's settings do not change."""
    return lambda _settings: given
