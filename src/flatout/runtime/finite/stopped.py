"""Why a job was stopped, as its process wrote it down."""

import dataclasses
import json
from pathlib import Path

from flatout.records.finite import NOT_FINITE_FILE, Diagnosis
from flatout.records.session import RANKS_FOLDER

_LISTS = ("parameters", "values_not_finite", "loss_scales")


def not_finite_in(folder: Path) -> Diagnosis | None:
    """Of the first rank whose own gradients were not finite, else of any; None where none was stopped."""
    found = []
    for path in sorted((folder / RANKS_FOLDER).glob(f"*/{NOT_FINITE_FILE}")):
        try:
            plain = json.loads(path.read_text())
            known = {field.name for field in dataclasses.fields(Diagnosis)}
            given = {name: value for name, value in plain.items() if name in known}
            found.append(Diagnosis(**given | {name: tuple(given[name]) for name in _LISTS}))
        except (OSError, ValueError, TypeError, KeyError):  # half of a file, by a process that was killed
            continue
    return min(found, key=lambda one: (not one.not_finite, one.rank), default=None)
