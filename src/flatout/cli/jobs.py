"""What commands that run a user's script have in common: how it is named, and its run folder."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from flatout.runtime.profiling import ProfileRequest

F = TypeVar("F", bound=Callable[..., Any])

# Everything after the script's name is the script's own, flags included.
JOB_SETTINGS = {"ignore_unknown_options": False, "allow_interspersed_args": False}


def job_argument(command: F, *, required: bool = True) -> F:
    """SCRIPT [ARGS]..., as `words`."""
    return click.argument(
        "words", nargs=-1, required=required, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]..."
    )(command)


def job_options(command: F) -> F:
    """Options of every command that runs trials."""
    for option in reversed(
        (
            click.option(
                "--module", "-m", "as_module", is_flag=True, help="SCRIPT is a module, as in python -m."
            ),
            click.option(
                "--python",
                help="The Python that runs the script. Default: the one that runs Flatout.",
                metavar="PATH",
            ),
            click.option(
                "--startup-limit",
                type=click.FloatRange(min=1),
                default=900.0,
                show_default=True,
                help="Seconds until the first update.",
            ),
            click.option(
                "--silence-limit",
                type=click.FloatRange(min=1),
                default=180.0,
                show_default=True,
                help="Seconds without an update after which the script counts as hung.",
            ),
            click.option("--cpu", is_flag=True, help="Hide the GPUs from the script."),
        )
    ):
        command = option(command)
    return command


def request_for(
    words: tuple[str, ...],
    *,
    as_module: bool,
    python: str | None,
    startup_limit: float,
    silence_limit: float,
    cpu: bool,
    **more: Any,
) -> "ProfileRequest":
    """What `job_argument` and `job_options` gave, as a request."""
    from flatout.runtime.command import job_command
    from flatout.runtime.profiling import ProfileRequest

    return ProfileRequest(
        command=job_command(("-m", *words) if as_module else words, python=python or sys.executable),
        startup_s=startup_limit,
        silence_s=silence_limit,
        environment={"CUDA_VISIBLE_DEVICES": ""} if cpu else {},
        **more,
    )
