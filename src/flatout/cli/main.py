"""The entry point: finds the command, and turns every error into a message and an exit code, once.

Only click is imported here: `flatout --help` must cost little more than starting Python.
"""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from flatout import __version__
from flatout.cli.commands import COMMANDS

EXIT_DEFECT = 70
EXIT_INTERRUPTED = 130
_EPILOG = "Exit codes: 0 done, 1 a finding, 2 the caller's mistake, 3 the environment's, 4 the job failed."


class LazyGroup(click.Group):
    """A group that imports a command's file only when that command runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """In the order of the list, which is the order in which people need them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the file of one command."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        import importlib

        command: click.Command = importlib.import_module(entry.module).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Answer an unknown name with the nearest."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from flatout.records.errors import UnknownName

            raise UnknownName("command", args[0], COMMANDS)
        return super().resolve_command(ctx, args)

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.purpose) for name, entry in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_EPILOG,
)
@click.version_option(__version__, prog_name="flatout")
def cli() -> None:
    """Flatout makes PyTorch jobs run at what the GPU can do, and keeps them from running out of memory.

    \b
    First steps:
      flatout doctor           what is this machine, and what is wrong with it?
      flatout limits           what can its GPU really do?
      flatout doctor --json    the same for a program
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command line and exit with its code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _make_output_safe()
    sys.exit(_run(words))


def _run(words: list[str]) -> int:
    debug = "--debug" in words
    try:
        result = cli.main(words, prog_name="flatout", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as mistake:
        if debug and not isinstance(mistake, click.UsageError):
            raise
        return _say_usage(mistake, words)
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has gone; Python must not complain about it at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if debug:
            raise
        return _say_error(error, words)
    return result if isinstance(result, int) else 0


def _say_usage(mistake: click.ClickException, words: list[str]) -> int:
    from flatout.records.errors import CallerMistake

    context = mistake.ctx if isinstance(mistake, click.UsageError) else None
    path = context.command_path if context else "flatout"
    usage = context.get_usage().removeprefix("Usage: ") if context else "flatout COMMAND"
    return _say_error(CallerMistake(mistake.format_message(), expected=usage, remedy=f"{path} --help"), words)


def _say_error(error: Exception, words: list[str]) -> int:
    from flatout.records.errors import FlatoutError

    if not isinstance(error, FlatoutError):
        click.echo(
            f"flatout: a defect in Flatout itself: {type(error).__name__}: {error}\n"
            "  expected: this never to happen\n"
            "  try:      the same with --debug, and report what it prints",
            err=True,
        )
        return EXIT_DEFECT
    if "--json" in words:
        from flatout.records.codec import encode

        body = {
            "error": {
                "kind": type(error).__name__,
                "received": error.received,
                "expected": error.expected,
                "remedy": error.remedy,
            },
            "exit_code": error.exit_code,
        }
        click.echo(encode("error", 1, body).decode(), nl=False)
    click.echo(f"flatout: {error}", err=True)
    return error.exit_code


def _make_output_safe() -> None:
    """In an ASCII locale, a character that cannot be printed is shown as an escape, not as a crash."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
