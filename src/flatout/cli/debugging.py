"""`flatout run --debug`: bare it shows tracebacks, as everywhere; with names it turns debug switches on.

What follows may be the script already: a word counts as names only where it looks like them. `--debug=NAMES`
leaves no doubt.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from flatout.cli.options import TRACEBACK

_HELP = "help"
# Here, so that `flatout run --help` loads nothing of what they need; a test holds them against the catalogue.
SWITCH_NAMES = ("blocking", "anomaly", "deterministic", "sync", "memory-history")


class DebuggableCommand(click.Command):
    """A command that runs a script, and whose --debug may stand alone or have a value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """With a value for a bare --debug."""
        return super().parse_args(ctx, self._with_a_value(list(args)))

    def _with_a_value(self, args: list[str]) -> list[str]:
        place = 0
        while place < len(args) and args[place].startswith("-") and args[place] != "--":
            if args[place] != "--debug":
                place += 1 + self._takes_value(args[place])
                continue
            following = args[place + 1] if place + 1 < len(args) else ""
            if _are_names(following):
                place += 2
            else:
                args[place] = f"--debug={TRACEBACK}"
                place += 1
        return args

    def _takes_value(self, word: str) -> bool:
        known = [option for option in self.params if isinstance(option, click.Option) and word in option.opts]
        return any(not option.is_flag for option in known)


def debug_option(command: Any) -> Any:
    """--debug, as a tuple of names."""
    return click.option(
        "--debug",
        metavar="[NAMES]",
        default="",
        is_eager=True,
        callback=_names,
        help="Bare: show the traceback when something goes wrong. With names, by commas: turn these on in "
        f"the job ({', '.join(SWITCH_NAMES)}); `--debug help` says what each shows and costs.",
    )(command)


def _are_names(word: str) -> bool:
    """Whether a word after --debug is meant for it, misspelt or not, and is not the script."""
    from flatout.records.errors import nearest

    if not word or word.startswith("-") or word.endswith(".py") or "/" in word or Path(word).exists():
        return False
    valid = (*SWITCH_NAMES, TRACEBACK, _HELP)
    pieces = [piece for piece in word.split(",") if piece]
    return "," in word or any(nearest(piece, valid) for piece in pieces)


def _names(context: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(piece.strip() for piece in value.split(",") if piece.strip()))
    if _HELP in names and not context.resilient_parsing:
        from rich.console import Console

        from flatout.inside.debugging.catalogue import SWITCHES
        from flatout.report.debugging import draw_switches

        rows = [(one.name, one.shows, one.cost, one.needs_cuda) for one in SWITCHES]
        draw_switches(rows, Console(highlight=False, markup=False, emoji=False))
        context.exit(0)
    return names


def switches_of(names: Sequence[str]) -> tuple[str, ...]:
    """The switches among them; raises UnknownName, with the valid ones."""
    from flatout.records.errors import UnknownName

    for name in names:
        if name not in (*SWITCH_NAMES, TRACEBACK):
            raise UnknownName("debug switch", name, SWITCH_NAMES)
    return tuple(name for name in SWITCH_NAMES if name in names)


def announced(switches: Sequence[str], *, on_cpu: bool) -> tuple[tuple[str, ...], list[str]]:
    """Those that can do something here, and a word on each: what it shows and costs, or that it cannot."""
    from flatout.inside.debugging.catalogue import BY_NAME

    works, found = [], []
    for name in switches:
        switch = BY_NAME[name]
        if switch.needs_cuda and (on_cpu or not _has_gpu()):
            found.append(f"debug {name}: does nothing here, without an NVIDIA or AMD GPU")
        else:
            works.append(name)
            found.append(f"debug {name}: {switch.shows}; costs: {switch.cost}")
    return tuple(works), found


def _has_gpu() -> bool:
    from flatout.hardware.machine import default_sources

    sources = default_sources()
    try:
        return any(source.discover().devices for source in sources if source.vendor in ("nvidia", "amd"))
    finally:
        for source in sources:
            source.close()
