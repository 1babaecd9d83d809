"""`--log-to`: where the figures of a job go, as an option."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from flatout.monitor.sinks.catalogue import Target

F = TypeVar("F", bound=Callable[..., Any])


def log_to_option(metavar: str, text: str) -> Callable[[F], F]:
    """The command receives `log_to`, as it was given."""
    return click.option("--log-to", metavar=metavar, default="", help=text)


def targets_of(text: str) -> "list[Target]":
    """The sinks that were named, if any were; a wrong name or a missing package ends the command here."""
    if not text:
        return []
    from flatout.monitor.sinks.catalogue import targets

    return targets(text)


def folder_of_traces(text: str) -> str | None:
    """Of a trial only recordings leave the run folder, and only to TensorBoard's files."""
    from flatout.records.errors import CallerMistake

    found = targets_of(text)
    others = [one.kind for one in found if one.kind != "tensorboard"]
    if others:
        raise CallerMistake(
            f"--log-to {', '.join(others)}",
            expected="tensorboard:DIR: a profile runs the script as a trial, and trials log to no service",
            remedy="flatout run --log-to, for the job itself",
        )
    return found[0].place if found else None
