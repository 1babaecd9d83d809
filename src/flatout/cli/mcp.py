"""`flatout mcp`."""

from pathlib import Path

import click

from flatout.cli.commands import COMMANDS
from flatout.cli.options import Size
from flatout.records.errors import CallerMistake, MissingExtra, UnknownName


@click.command("mcp", short_help=COMMANDS["mcp"].purpose)
@click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    metavar="DIR",
    help="Where commands run, and out of which no path leads. Default: the working folder.",
)
@click.option(
    "--allow",
    multiple=True,
    metavar="NAMES",
    help="What an agent may change: run, stop, power, plan, skills. Default: nothing.",
)
@click.option(
    "--python", metavar="PATH", help="The Python that runs scripts. Default: the one that runs Flatout."
)
@click.option(
    "--most",
    type=Size(),
    default="64000",
    metavar="SIZE",
    help="The longest answer; of longer ones the rest is in a file.  [default: 64000 bytes]",
)
@click.option(
    "--http", metavar="PORT", type=click.IntRange(0, 65535), help="On this port of 127.0.0.1, not stdio."
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="With --http: the bearer token to ask for. Default: a new one, printed.",
)
@click.option("--debug", is_flag=True, help="Show the traceback when something goes wrong.")
def command(
    root: Path,
    allow: tuple[str, ...],
    python: str | None,
    most: int,
    http: int | None,
    token_file: Path | None,
    debug: bool,
) -> int:
    """These commands as tools for an agent.

    Speaks the Model Context Protocol over standard input and output, as agents start it, or over HTTP to this
    machine alone. Each tool runs a command of Flatout's with --json in a process of its own and answers with
    its document. Tools that change something are off until --allow names them. Needs flatout[mcp].

    \b
    Examples:
      flatout mcp
      flatout mcp --root ~/project --python ~/envs/train/bin/python
      flatout mcp --allow run,stop
      flatout mcp --http 8765 --token-file token
    """
    del debug  # main.py looks at the word
    allowed = _allowed(allow)
    if not root.is_dir():
        raise CallerMistake(
            f"there is no folder {str(root)!r}", expected="the folder of a project", remedy="--root ."
        )
    if token_file is not None and http is None:
        raise CallerMistake(
            "--token-file without --http", expected="both, or neither", remedy="flatout mcp --http 8765"
        )
    try:
        import mcp.server.lowlevel  # noqa: F401
        import mcp_types  # noqa: F401
    except ImportError as error:
        raise MissingExtra("mcp>=2", extra="mcp", wanted_for="flatout mcp") from error
    from flatout.cli.agents.places import Root
    from flatout.cli.agents.server import Agents
    from flatout.cli.agents.serving import serve_http, serve_stdio

    agents = Agents(Root(root), allowed=allowed, python=python, most_bytes=most)
    if http is None:
        return serve_stdio(agents)
    return serve_http(agents, http, token_file)


def _allowed(given: tuple[str, ...]) -> frozenset[str]:
    from flatout.cli.agents.tools import PERMISSIONS

    names = [name for words in given for name in words.replace(",", " ").split()]
    for name in names:
        if name not in PERMISSIONS:
            raise UnknownName("permission", name, PERMISSIONS)
    return frozenset(names)
