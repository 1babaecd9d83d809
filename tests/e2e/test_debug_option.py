"""`--debug` of `flatout run`: bare, with names, misspelt, before a script and behind it."""

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from flatout.cli.debugging import SWITCH_NAMES, announced, switches_of
from flatout.cli.options import TRACEBACK
from flatout.cli.run import command
from flatout.inside.debugging.catalogue import SWITCHES
from flatout.records.errors import UnknownName

ROOT = Path(__file__).parents[2]


def parsed(*words: str) -> dict[str, Any]:
    return command.make_context("run", list(words)).params


@pytest.mark.parametrize(
    ("words", "names", "job"),
    [
        (["train.py", "--debug"], (), ("train.py", "--debug")),
        (["--debug", "train.py", "--lr", "3"], (TRACEBACK,), ("train.py", "--lr", "3")),
        (["--debug", "--as-written", "train.py"], (TRACEBACK,), ("train.py",)),
        (["--debug", "--", "torchrun", "train.py"], (TRACEBACK,), ("torchrun", "train.py")),
        (["--debug", "anomaly", "train.py"], ("anomaly",), ("train.py",)),
        (["--debug=sync", "train.py"], ("sync",), ("train.py",)),
        (["--debug", "sync,anomaly,sync", "train.py"], ("sync", "anomaly"), ("train.py",)),
        (["--plan", "--debug", "train.py"], (), ("train.py",)),  # a strange name for a plan
        (["--plan", "x.toml", "--debug", "blocking", "train.py"], ("blocking",), ("train.py",)),
        (["-m", "--debug", "package.train", "--x"], (TRACEBACK,), ("package.train", "--x")),
        (["--debug", "tools/anomaly", "y"], (TRACEBACK,), ("tools/anomaly", "y")),
        (["--debug", "anomally", "train.py"], ("anomally",), ("train.py",)),
    ],
)
def test_what_follows_debug_is_names_or_the_script(
    words: list[str], names: tuple[str, ...], job: tuple[str, ...]
) -> None:
    found = parsed(*words)
    assert (found["debug"], found["words"]) == (names, job)


def test_a_script_that_is_called_like_a_switch_is_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sync").write_text("")
    assert parsed("--debug", "sync")["words"] == ("sync",)
    assert parsed("--debug=sync", "sync")["debug"] == ("sync",)


def test_an_unknown_name_lists_the_valid_ones() -> None:
    with pytest.raises(UnknownName, match="did you mean 'anomaly'") as raised:
        switches_of(("anomally",))
    assert raised.value.valid == SWITCH_NAMES
    assert switches_of((TRACEBACK, "sync", "blocking")) == ("blocking", "sync")


def test_help_and_docs_name_every_switch_with_its_cost() -> None:
    assert tuple(one.name for one in SWITCHES) == SWITCH_NAMES
    shown = CliRunner().invoke(command, ["--debug", "help"], obj={})
    assert shown.exit_code == 0
    page = (ROOT / "docs/debugging.md").read_text()
    listed = " ".join(command.get_help(click.Context(command)).split())
    for switch in SWITCHES:
        assert switch.name in shown.output
        assert switch.name in listed
        assert f"| `{switch.name}` |" in page
        assert switch.shows
        assert switch.cost


def test_what_needs_a_gpu_says_that_it_does_nothing_without() -> None:
    works, words = announced(("blocking", "anomaly", "memory-history"), on_cpu=True)
    assert works == ("anomaly",)
    assert [word.partition(": ")[2].startswith("does nothing here") for word in words] == [True, False, True]
    assert "costs: " in words[1]
