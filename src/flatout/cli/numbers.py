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
                callback=_policy,
                help="Updates whose gradients are not finite: leave them out (skip), or stop at the first.",
            ),
            click.option(
                "--patience",
                type=click.IntRange(min=1),
                default=PATIENCE,
                show_default=True,
                help="With --on-nan: stop after so many of them in a row.",
            ),
        )
    ):
        command = option(command)
    return command


def _policy(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str:
    if value == "rollback":
        from flatout.records.errors import CallerMistake

        raise CallerMistake(
            "--on-nan rollback, for a script whose checkpoints Flatout does not know",
            expected="--on-nan skip or --on-nan stop",
            remedy='flatout.Update(..., on_nan="rollback", checkpointer=...) in the script: docs/nan.md',
        )
    return value or ""
