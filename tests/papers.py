"""What the project's Markdown says: its links, headings, blocks of code and command lines."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from flatout.cli.main import cli

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "skills/**/*.md", "benchmarks/*.md", "examples/*.md")
    for page in ROOT.glob(pattern)
)
# Where a command of a shell ends; what comes behind it is not Flatout's.
_ENDS = {"|", ">", "2>", "&&", "||", ";", "&"}


class Block(NamedTuple):
    """A block of code: its language ("" for none, "indented" for one without fences), first line and text."""

    language: str
    line: int
    text: str


def blocks(text: str) -> list[Block]:
    """Fenced ones, and those that are indented by four after an empty line."""
    found, rows, place = [], text.splitlines(), 0
    while place < len(rows):
        fence = re.match(r" *(`{3,})(\S*)", rows[place])
        end = place + 1
        if fence:
            while end < len(rows) and not rows[end].strip().startswith(fence[1]):
                end += 1
            found.append(Block(fence[2], place + 2, "\n".join(rows[place + 1 : end])))
            end += 1
        elif rows[place].startswith("    ") and (place == 0 or not rows[place - 1].strip()):
            while end < len(rows) and (rows[end].startswith("    ") or not rows[end].strip()):
                end += 1
            found.append(Block("indented", place + 1, "\n".join(row[4:] for row in rows[place:end])))
        place = end
    return found


def prose(text: str) -> str:
    """Without blocks and without what is in backticks."""
    inside = {line + count for _, line, code in blocks(text) for count in range(-1, len(code.splitlines()))}
    kept = "\n".join(row for number, row in enumerate(text.splitlines(), 1) if number not in inside)
    return re.sub(r"`[^`\n]*`", "``", kept)


def links(text: str) -> list[str]:
    """Targets of links and pictures that are no addresses of the web."""
    targets = re.findall(r"\]\(\s*<?([^)>\s]+)", prose(text))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(text: str) -> set[str]:
    """What can follow a `#`, as GitHub makes it of headings."""
    found: dict[str, int] = {}
    code = {line + count for _, line, code in blocks(text) for count in range(len(code.splitlines()))}
    for number, row in enumerate(text.splitlines(), 1):
        if number not in code and (heading := re.match(r"#{1,6} +(.+?) *#*$", row)):
            said = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading[1])
            slug = re.sub(r"[^\w\- ]", "", said.lower()).replace(" ", "-")
            found[slug] = found.get(slug, -1) + 1
    return {
        slug if not more else f"{slug}-{more}" for slug, last in found.items() for more in range(last + 1)
    }


def command_lines(text: str) -> Iterator[str]:
    """Each line of a block that calls Flatout."""
    for block in blocks(text):
        for line in block.text.replace("\\\n", " ").splitlines():
            if called := re.match(r"\s*(?:\$ )?(?:sudo )?(flatout [a-z].*)", line):
                yield called[1]


def mentions(text: str) -> list[str]:
    """What stands in backticks and begins with a command; often with options alone, not what they need."""
    fenceless = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return re.findall(r"(?<!`)`(?:sudo )?(flatout [a-z][^`]*)`", fenceless)


def words_of(line: str) -> list[str]:
    """As a shell would hand them over, without `flatout` itself and what is piped elsewhere."""
    words = shlex.split(line, comments=True)[1:]
    end = next((place for place, word in enumerate(words) if word in _ENDS), len(words))
    return words[:end]


def command_of(name: str) -> click.Command:
    """As the user would reach it."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None, f"there is no command {name}"
    return command


def parsed_by_click(words: list[str]) -> None:
    """Raises where the command or an option does not exist, or a value does not parse."""
    command, given = command_of(words[0]), words[1:]
    if isinstance(command, click.Group) and given and not given[0].startswith("-"):
        command, given = command.commands[given[0]], given[1:]
    command.make_context(f"flatout {words[0]}", given)


def options_of(name: str) -> set[str]:
    """All spellings, with those of commands below it."""
    command = command_of(name)
    below = list(command.commands.values()) if isinstance(command, click.Group) else []
    options = [one for each in (command, *below) for one in each.params]
    return {"--help", *(said for one in options for said in (*one.opts, *one.secondary_opts))}
