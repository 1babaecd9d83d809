"""Rows of a trace, by what they are called, and the time that they cover."""

import re
from typing import Any

import numpy as np

from flatout.analyze.trace.events import Columns
from flatout.analyze.trace.spans import Spans, merged


def rows_of(columns: Columns, categories: tuple[int, ...], pattern: "re.Pattern[str] | None" = None) -> Any:
    """Rows of some categories, whose names match."""
    some = np.isin(columns.category, categories)
    if pattern is not None:
        some &= np.array([bool(pattern.search(name)) for name in columns.names], bool)[columns.name]
    return np.flatnonzero(some)


def spans_of(columns: Columns, rows: Any) -> Spans:
    """The time that they cover together; rows without a length cover none."""
    known = rows[columns.length[rows] >= 0]
    return merged(columns.start[known], columns.start[known] + columns.length[known])
