"""Pages lead somewhere, and what they tell a reader to type can be typed."""

import ast
import textwrap
import tomllib

import click
import pytest
import yaml

from flatout.cli.commands import COMMANDS
from scripts.site.navigation import BELOW, GROUPS, below
from tests.papers import (
    PAGES,
    ROOT,
    anchors,
    blocks,
    command_lines,
    links,
    mentions,
    options_of,
    parsed_by_click,
    words_of,
)

TEXTS = {str(page.relative_to(ROOT)): page.read_text("utf-8") for page in PAGES}
# Blocks that have a language can be read by it.
READERS = {"python": ast.parse, "toml": tomllib.loads, "yaml": yaml.safe_load}


def _leads_somewhere(page: str, link: str) -> bool:
    file, _, anchor = link.partition("#")
    target = (ROOT / page).parent / file if file else ROOT / page
    return target.exists() and (not anchor or anchor in anchors(target.read_text("utf-8")))


def test_links_and_anchors_lead_somewhere() -> None:
    ways = [(page, link) for page, text in TEXTS.items() for link in links(text)]
    assert [way for way in ways if not _leads_somewhere(*way)] == []


def test_lines_of_blocks_can_be_typed() -> None:
    wrong = []
    for page, text in TEXTS.items():
        for line in command_lines(text):
            try:
                parsed_by_click(words_of(line))
            except click.UsageError as error:
                wrong.append(f"{page}: {line}: {error.format_message()}")
    assert wrong == []


def test_commands_and_options_that_sentences_name_exist() -> None:
    for page, text in TEXTS.items():
        for mention in mentions(text):
            name, *rest = mention.split()[1:]
            assert name in COMMANDS, f"{page}: {mention}"
            # Behind a script, or `--`, options are not ours.
            end = next((place for place, word in enumerate(rest) if word == "--" or ".py" in word), None)
            said = {word.partition("=")[0] for word in rest[:end] if word.startswith("--")}
            assert said <= options_of(name), f"{page}: {mention}"
            if end is not None and ".py" in rest[end]:
                behind = {word.partition("=")[0] for word in rest[end:] if word.startswith("--")}
                assert not behind & options_of(name), f"{page}: {mention}: that is the script's"


def test_blocks_are_what_they_say() -> None:
    wrong = []
    for page, text in TEXTS.items():
        for language, line, code in blocks(text):
            try:
                READERS.get(language, str)(textwrap.dedent(code))
            except (SyntaxError, tomllib.TOMLDecodeError, yaml.YAMLError) as error:
                wrong.append(f"{page}:{line} is no {language}: {error}")
    assert wrong == []


def test_every_page_has_its_place_on_the_site() -> None:
    listed = [page for pages in GROUPS.values() for page in pages]
    listed += [page for above in BELOW for page in below(above)] + ["docs/README"]
    assert sorted(listed) == sorted(page.removesuffix(".md") for page in TEXTS)


WRONG = """# Title

One line.
[nowhere](missing.md), [no such part](#nothing), `not a [link](x.md)`

    flatout profile --no-such train.py

```python
x = (
```
"""


def test_what_is_wrong_in_a_page_would_be_seen() -> None:
    assert links(WRONG) == ["missing.md", "#nothing"]
    assert anchors(WRONG) == {"title"}
    [line] = command_lines(WRONG)
    with pytest.raises(click.UsageError):
        parsed_by_click(words_of(line))
    [block] = [block for block in blocks(WRONG) if block.language == "python"]
    assert block.text == "x = ("


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("## `flatout power`: the cap", "flatout-power-the-cap"),
        ("## F303: the optimizer is not fused", "f303-the-optimizer-is-not-fused"),
        ("### What [this](x.md) costs?", "what-this-costs"),
    ],
)
def test_headings_become_anchors_as_on_github(heading: str, anchor: str) -> None:
    assert anchors(heading) == {anchor}
    assert anchors(f"{heading}\n\n{heading}\n") == {anchor, f"{anchor}-1"}
