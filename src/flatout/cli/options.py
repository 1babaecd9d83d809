"""What every command has in common: its options, its console, its progress line and its run folder."""

import contextlib
import dataclasses
import functools
import math
import os
import shlex
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from flatout.records.places import PROJECT_FOLDER

if TYPE_CHECKING:
    from rich.console import Console

    from flatout.records.runs import RunFolder

F = TypeVar("F", bound=Callable[..., Any])
Step = Callable[[str, int, int], None]


@dataclasses.dataclass(frozen=True)
class Output:
    """How a command speaks: to a person, or to a program."""

    as_json: bool
    quiet: bool

    def document(self, kind: str, version: int, body: Any) -> None:
        """Print one JSON document."""
        from flatout.records.codec import encode

        click.echo(encode(kind, version, body).decode(), nl=False)

    def console(self) -> "Console":
        """A console for people on standard output."""
        from rich.console import Console

        return Console(highlight=False, markup=False, emoji=False, soft_wrap=False)

    def error_console(self) -> "Console":
        """A console for words beside a script's own output."""
        from rich.console import Console

        return Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=False)

    def notice(self, text: str) -> None:
        """One line beside the result; never on standard output."""
        if not self.quiet:
            from flatout.records.words import inert

            click.echo(inert(text, but="\n"), err=True)

    @contextlib.contextmanager
    def progress(self, title: str) -> Iterator[Step]:
        """A progress line on a terminal or into a listener's pipe; else nothing when piped."""
        from flatout.cli import listener

        if listener.is_there():
            listener.tell(title, 0, 0)
            yield listener.tell
            return
        if self.as_json or self.quiet or not sys.stderr.isatty():
            yield lambda _name, _done, _total: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(title, total=None)

            def step(name: str, done: int, total: int) -> None:
                bar.update(task, description=name, completed=done, total=total or None)

            yield step


class Duration(click.ParamType):  # type: ignore[type-arg]
    """`90`, `50ms`, `90s`, `5m`, `1h` or `2d`, as seconds."""

    name = "duration"

    def __init__(self, *, or_none: bool = False) -> None:
        self._or_none = or_none

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds."""
        if isinstance(value, int | float):
            return float(value)
        units = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "": 1}
        number = value.rstrip("smhd")
        try:
            seconds = float(number) * units[value[len(number) :]]
        except (KeyError, ValueError):
            self.fail(f"{value!r} is no duration: 50ms, 90s, 5m and 1h are", param, ctx)
        if not (seconds > 0 or (self._or_none and seconds == 0)):
            self.fail("it must be more than nothing", param, ctx)
        if not math.isfinite(seconds):
            self.fail("it must end", param, ctx)
        return seconds


class Size(click.ParamType):  # type: ignore[type-arg]
    """`40GiB`, `512MiB`, `80GB` or a number of bytes, as bytes.

    `of_memory`: who types 40 means no bytes, and is asked for the unit.
    """

    name = "size"

    def __init__(self, *, of_memory: bool = False) -> None:
        self._fewest = 1 << 20 if of_memory else 1

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes."""
        if isinstance(value, int):
            return value
        units = {"gib": 1 << 30, "g": 1 << 30, "mib": 1 << 20, "m": 1 << 20, "gb": 10**9, "mb": 10**6, "": 1}
        number = value.rstrip("GMiBbgm")
        unit = value[len(number) :].lower()
        try:
            count = round(float(number) * units[unit])
        except (ValueError, KeyError, OverflowError):
            self.fail(f"{value!r} is no size: 40GiB, 512MiB and 80GB are", param, ctx)
        if count <= 0:
            self.fail("it must be more than nothing", param, ctx)
        if not unit and count < self._fewest:
            self.fail(f"{value!r} is {count} bytes: {value}GiB, or {value}MiB?", param, ctx)
        return count


class Place(click.Path):
    """A file that is to be written in the end: whether it can be is found out before the work."""

    def __init__(self, of: str) -> None:
        super().__init__(path_type=Path, dir_okay=False)
        self._of = of

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path."""
        from flatout.records.atomic import ensure_place
        from flatout.records.errors import CallerMistake

        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if ctx is not None and ctx.resilient_parsing:  # nothing is begun: what was typed is of interest
            return path
        if not path.parent.is_dir():
            raise CallerMistake(
                f"there is no folder {str(path.parent)!r} for the {self._of}",
                expected="a file in a folder that exists",
                remedy=f"mkdir -p {shlex.quote(str(path.parent))}",
            )
        ensure_place(path, remedy=f"choose a place for the {self._of} that this user may write to")
        return path


# What a bare --debug is short for.
TRACEBACK = "traceback"


def common_options(command: F) -> F:
    """--json, --quiet and --debug; the command receives them as `output`."""
    debug = click.option("--debug", is_flag=True, help="Show the traceback when something goes wrong.")
    return _common(command, debug)


def common_options_and(debug: Callable[[F], F]) -> Callable[[F], F]:
    """The same with another --debug, of which the command receives the words, too."""
    return functools.partial(_common, debug=debug, keep=True)


def _common(command: F, debug: Callable[[Any], Any], *, keep: bool = False) -> F:
    @click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
    @click.option("--quiet", "-q", is_flag=True, help="No progress, no notices: the result alone.")
    @debug
    @functools.wraps(command)
    def with_output(*args: Any, as_json: bool, quiet: bool, debug: Any, **kwargs: Any) -> Any:
        asked = click.get_current_context().find_root().obj
        if asked is not None:  # main.py's, which looks at it when something goes wrong
            asked.update(json=as_json, debug=debug is True or (keep and TRACEBACK in debug))
        kept = {"debug": debug} if keep else {}
        return command(*args, output=Output(as_json=as_json, quiet=quiet), **kept, **kwargs)

    return with_output  # type: ignore[no-any-return]


def typed() -> dict[str, str]:
    """Options, and arguments by their first words, that stand on the command line; by their names in code."""
    from click.core import ParameterSource

    context = click.get_current_context()
    found = {}
    for one in context.command.params:
        value = context.params.get(one.name or "")
        if context.get_parameter_source(one.name or "") is ParameterSource.COMMANDLINE and value != ():
            word = str(value[0] if isinstance(value, tuple) else value)
            found[one.name or ""] = one.opts[0] if isinstance(one, click.Option) else word
    return found


def refuse_beside(what: str, useful: Collection[str]) -> None:
    """Refuse what was typed beside `what` and has no use there: nothing is dropped in silence."""
    from flatout.records.errors import CallerMistake

    for name, flag in typed().items():
        if name not in {*useful, "as_json", "quiet", "debug"}:
            raise CallerMistake(
                f"{flag} has no meaning beside {what}",
                expected="one or the other",
                remedy=f"leave {flag} away",
            )


def page_option(command: F) -> F:
    """--html: the result as a page, too."""
    return click.option(
        "--html", type=Place("page"), metavar="FILE", help="Where to write a page with the picture."
    )(command)


def leave_page(output: Output, path: Path, page: str) -> None:
    """Write it, and tell where."""
    from flatout.records.atomic import write_atomically

    write_atomically(path, page.encode("utf-8", "replace"))
    output.notice(f"the picture: {path}")


def save_option(command: F) -> F:
    """--save: keep the result in a run folder."""
    return click.option(
        "--save", is_flag=True, help="Keep the result in .flatout/runs; `flatout report` reads it again."
    )(command)


@contextlib.contextmanager
def new_run(output: Output, command: str) -> Iterator["RunFolder"]:
    """A run folder for this command under the working folder, listed in the index however it ends."""
    from flatout.records.index import RunIndex
    from flatout.records.runs import RunFolder

    root = Path(PROJECT_FOLDER)
    folder = RunFolder.create(root, command=command, arguments=tuple(sys.argv[1:]))
    try:
        with folder.writing():
            yield folder
    finally:
        RunIndex(root, notice=output.notice).add(folder.manifest)


def save_run(output: Output, command: str, version: int, body: Any) -> None:
    """Keep a result in a run folder of its own, and tell where."""
    with new_run(output, command) as folder:
        folder.write(command, version, body)
    output.notice(f"saved as {folder.manifest.id} in {folder.path.parent}")
