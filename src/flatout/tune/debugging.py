"""Debug switches beside a plan: what was asked for is not undone by a lever."""

import dataclasses
import os
from collections.abc import Mapping, Sequence

from flatout.inside.debugging.catalogue import BY_NAME
from flatout.records.plan import Plan


def without_what_undoes(plan: Plan, switches: Sequence[str]) -> tuple[Plan, list[str]]:
    """The plan as far as it leaves these switches on, and a word on each lever that is left out."""
    against = {lever: name for name in switches for lever in BY_NAME[name].against}
    left_out = [choice for choice in plan.levers if choice.id in against]
    words = [f"left out {choice.id}: it would undo --debug {against[choice.id]}" for choice in left_out]
    kept = tuple(choice for choice in plan.levers if choice not in left_out)
    return dataclasses.replace(plan, levers=kept) if left_out else plan, words


def environment_of(switches: Sequence[str], given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables that must be there before the job starts; where the user has set one, it stays."""
    given = os.environ if given is None else given
    wanted = {name: value for one in switches for name, value in BY_NAME[one].environment.items()}
    return {name: value for name, value in wanted.items() if given.get(name, "0") in ("", "0")}
