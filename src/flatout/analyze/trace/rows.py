"""Rows of a trace, by what they are called, and the time that they cover."""

import re
from typing import Any

import numpy as np

from flatout.analyze.trace.events import CODES, Columns
from flatout.analyze.trace.spans import Spans, merged


def rows_of(columns: Columns, categories: tuple[int, ...], pattern: "re.Pattern[str] | None" = None) -> Any:
    """Rows of some categories, whose names match."""
    some = np.isin(columns.category, categories)
    if pattern is not None:
        some &= np.array([bool(pattern.search(name)) for name in columns.names], bool)[columns.name]
    return np.flatnonzero(some)


def launchers(columns: Columns, rows: Any) -> tuple[Any, Any]:
    """Of rows on the device whose operator is known: the operator that launched each, and the rows.

    By the identifier that a kernel shares with it.
    """
    of_host = np.flatnonzero((columns.category == CODES["cpu_op"]) & (columns.external >= 0))
    if not len(of_host) or not len(rows):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    order = of_host[np.argsort(columns.external[of_host], kind="stable")]
    wanted = columns.external[rows]
    place = np.minimum(np.searchsorted(columns.external[order], wanted), len(order) - 1)
    matches = columns.external[order][place] == wanted
    return order[place[matches]], rows[matches]


def spans_of(columns: Columns, rows: Any) -> Spans:
    """The time that they cover together; rows without a length cover none."""
    known = rows[columns.length[rows] >= 0]
    return merged(columns.start[known], columns.start[known] + columns.length[known])
