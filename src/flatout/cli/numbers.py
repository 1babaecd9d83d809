"""`--on-nan` and `--patience`: what becomes of updates that are not finite."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from flatout.records.finite import PATIENCE, POLICIES

F = TypeVar("F", bound=Callable[..., Any])


def nan_options(command: F) -> F:
    """As `on_nan`, empty where updates are only watched, and `patience`."""
    for option in reversed(
        (
            click.option(
                "--on-nan",
                type=click.Choice(POLICIES),
                callback=lambda _context, _parameter, value: value or "",
                help="Updates whose gradients are not finite: leave them out (skip), stop at the first, or "
                "go back to an earlier state after --patience of them (rollback).",
            ),
            click.option(
                "--patience",
                type=click.IntRange(min=1),
                default=PATIENCE,
                show_default=True,
                help="With --on-nan: stop, or go back, after so many of them in a row.",
            ),
        )
    ):
        command = option(command)
    return command
