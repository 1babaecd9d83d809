"""The entry point: finds the command, and turns every error into a message and an exit code, once.

Only click is imported here: `flatout --help` must cost little more than starting Python.
"""

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn

import click

from flatout.cli.commands import COMMANDS, EXIT_INTERRUPTED
from flatout.cli.listener import VARIABLE, take_pipe
from flatout.cli.streams import CannotPrint, discard_output, make_output_safe
from flatout.records.version import __version__

EXIT_DEFECT = 70
# An option that is as much like what was typed as this may be what was meant.
_NEAR = 0.75
_EPILOG = (
    "Exit codes: 0 done, 1 a finding, 2 the caller's mistake, 3 the environment's, 4 the job failed, "
    "70 a defect in Flatout."
)


class Ended(BaseException):
    """SIGTERM or SIGHUP came: all is put away on the way out, and then the signal has its effect."""


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
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_EPILOG,
)
@click.option("--json", "as_json", is_flag=True, help="Without a command: what is here as a JSON document.")
@click.option("--debug", is_flag=True, hidden=True)  # main() looks for it in the words
@click.version_option(__version__, prog_name="flatout")
@click.pass_context
def cli(ctx: click.Context, as_json: bool, debug: bool) -> None:
    """Flatout makes PyTorch jobs run at what the GPU can do, and keeps them from running out of memory.

    \b
    First steps:
      flatout                  what is here, and what to do next?
      flatout doctor           what is this machine, and what is wrong with it?
      flatout limits           what can its GPU really do?
      flatout doctor --json    the same for a program
    """
    if ctx.invoked_subcommand is None:
        from flatout.cli.next_step.command import say_what_is_next

        say_what_is_next(as_json=as_json)
    elif as_json or debug:
        flag, name = "--json" if as_json else "--debug", ctx.invoked_subcommand
        raise click.UsageError(f"{flag} stands before the command: flatout {name} {flag} ...")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command line and exit with its code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    make_output_safe()
    ended, listen_no_longer = _listen_for_the_end()
    if VARIABLE in os.environ:
        take_pipe()
    # By the words at first: these must hold even when they cannot be parsed. A command that could be parsed
    # knows better, for what follows a script's name is for the script.
    asked = {flag: f"--{flag}" in words for flag in ("json", "debug")}
    try:
        _look_after_power_limits(words)
        code = _run(words, asked)
        try:
            sys.stdout.flush()
        except OSError as error:  # a full disk shows only now; a reader that went away is no fault
            code = code if error.errno == errno.EPIPE else _say_error(_unprintable(error), asked)
            discard_output()
    finally:
        listen_no_longer()
        if ended:
            os.kill(os.getpid(), ended[0])
    sys.exit(code)


def _look_after_power_limits(words: list[str]) -> None:
    """Put back what a `flatout power` that was killed left behind. Costs a look at two folders."""
    if words[:1] == ["power"]:
        return  # it does so itself, and says so in its own words
    from flatout.records.places import power_notes

    if power_notes():
        from flatout.monitor.power.unfinished import tell_and_restore
        from flatout.records.words import inert

        tell_and_restore(lambda text: click.echo(inert(f"flatout: {text}", but="\n"), err=True))


def _listen_for_the_end() -> tuple[list[int], Callable[[], None]]:
    """Have SIGTERM and SIGHUP pass through the program as an exception; the list holds the one that came.

    Unlike the end that they bring otherwise, this shows the cursor again and removes what is temporary. The
    second one ends the program where it stands.
    """
    came: list[int] = []
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL]

    def listen_no_longer() -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        came.append(number)
        listen_no_longer()
        raise Ended

    for number in numbers:
        signal.signal(number, end)
    return came, listen_no_longer


def _run(words: list[str], asked: dict[str, bool]) -> int:
    try:
        result = cli.main(words, prog_name="flatout", standalone_mode=False, obj=asked)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except SystemExit:
        # click's and rich's answer to a reader that went away (`| head`), which is no fault of the command.
        discard_output()
        return 0
    except click.ClickException as mistake:
        return _say_error(_usage_mistake(mistake), asked)
    except (click.Abort, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # we are on the way out: a second one is no news
        return _say_stopped(asked)
    except Ended:
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the one place where everything ends
        if _grew_out_of(error, Ended):
            return EXIT_INTERRUPTED
        if _grew_out_of(error, KeyboardInterrupt):
            return _say_stopped(asked)
        if asked["debug"]:
            import traceback

            traceback.print_exc()
        if isinstance(error, CannotPrint):
            discard_output()
            error = _unprintable(error)
        elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            error = _bad_disk(error)
        return _say_error(error, asked)
    return result if isinstance(result, int) else 0


def _grew_out_of(error: BaseException, kind: type[BaseException]) -> bool:
    """Whether an interruption became this error on its way: in a class body, or where we put things away."""
    seen: set[int] = set()
    earlier: BaseException | None = error
    while earlier is not None and id(earlier) not in seen:
        if isinstance(earlier, kind):
            return True
        seen.add(id(earlier))
        earlier = earlier.__cause__ or earlier.__context__
    return False


def _usage_mistake(mistake: click.ClickException) -> Exception:
    from flatout.records.errors import CallerMistake

    context = mistake.ctx if isinstance(mistake, click.UsageError) else None
    path = context.command_path if context else "flatout"
    usage = context.get_usage().removeprefix("Usage: ") if context else "flatout COMMAND"
    message, remedy = mistake.format_message(), f"{path} --help"
    if isinstance(mistake, click.NoSuchOption) and context is not None:
        message = _no_such_option(mistake.option_name, context.command)
        if "did you mean" not in message and any(one.name == "words" for one in context.command.params):
            remedy += (
                f"   # an option of the script's goes after its name: {path} SCRIPT {mistake.option_name}"
            )
    return CallerMistake(message, expected=usage, remedy=remedy)


def _no_such_option(name: str, command: click.Command) -> str:
    import difflib

    known = [option for one in command.params for option in (*one.opts, *one.secondary_opts)]
    near = difflib.get_close_matches(name, known, 1, _NEAR)
    return f"no such option {name}" + (f"; did you mean {near[0]}?" if near else "")


def _unprintable(error: OSError) -> Exception:
    from flatout.records.errors import EnvironmentProblem

    return EnvironmentProblem(
        f"the output cannot be written: {error.strerror or error}",
        expected="a place for standard output with room in it",
        remedy="free some room, or write elsewhere",
    )


def _bad_disk(error: OSError) -> Exception:
    from flatout.records.errors import EnvironmentProblem

    return EnvironmentProblem(
        f"no room, or a bad disk: {error}",
        expected="disks that take and give what is written to them",
        remedy="df -h . ; dmesg | tail   # is one full, or failing?",
    )


def _say_error(error: Exception, asked: dict[str, bool]) -> int:
    from flatout.records.errors import FlatoutError

    if isinstance(error, FlatoutError):
        parts = (error.received, error.expected, error.remedy)
        return _say(type(error).__name__, parts, error.exit_code, asked)
    defect = f"a defect in Flatout itself: {type(error).__name__}: {error}"
    parts = (defect, "this never to happen", "the same with --debug, and report what it prints")
    return _say("Defect", parts, EXIT_DEFECT, asked)


def _say_stopped(asked: dict[str, bool]) -> int:
    if asked["json"]:
        parts = ("stopped by the user", "to be left alone", "start it again")
        return _say("Stopped", parts, EXIT_INTERRUPTED, asked)
    click.echo("stopped", err=True)
    return EXIT_INTERRUPTED


def _say(kind: str, parts: tuple[str, str, str], exit_code: int, asked: dict[str, bool]) -> int:
    """The three parts for people, and as a document where one was asked for."""
    received, expected, remedy = parts
    if asked["json"]:
        from flatout.records.codec import encode

        error = {"kind": kind, "received": received, "expected": expected, "remedy": remedy}
        with contextlib.suppress(OSError):
            click.echo(encode("error", 1, {"error": error, "exit_code": exit_code}).decode(), nl=False)
    from flatout.records.words import inert

    click.echo(
        inert(f"flatout: {received}\n  expected: {expected}\n  try:      {remedy}", but="\n"), err=True
    )
    return exit_code
