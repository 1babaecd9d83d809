"""The command line itself: help, mistakes, exit codes, completion."""

import json
import re

import pytest

from flatout.cli.commands import COMMANDS
from flatout.cli.main import cli
from tests.e2e.conftest import Run


def three_parts(text: str) -> bool:
    return re.fullmatch(r"flatout: .+\n  expected: .+\n  try:      .+\n", text, re.DOTALL) is not None


def test_every_command_shows_examples_and_the_line_of_the_list() -> None:
    import click

    for name, entry in COMMANDS.items():
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        assert command.name == name
        assert command.short_help == entry.purpose
        assert command.help is not None
        assert "Examples:" in command.help
        assert f"flatout {name}" in command.help
        assert command.help.splitlines()[0] == entry.purpose or name == "gpus"


def test_help_lists_every_command(flatout: Run) -> None:
    done = flatout("--help")
    assert done.returncode == 0
    for name in COMMANDS:
        assert re.search(rf"^  {name} ", done.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["docter"], "did you mean 'doctor'?"),
        (["doctor", "--jsn"], "--json"),
        (["limits", "--device", "cuda:9"], "unknown device 'cuda:9'"),
        (["limits", "--dtype", "bf61"], "did you mean 'bf16'?"),
        (["gpus", "h1000"], "unknown GPU 'h1000'"),
        (["gpus", "--vendor", "nvdia"], "nvidia"),
        (["gpus", "--prices", "nowhere.toml"], "no such file"),
        (["report", "no-such-run"], "unknown run 'no-such-run'"),
        (["doctor", "surplus"], "surplus"),
        (["doctor", "--python", "/nowhere/python"], "no Python at"),
        (["completion", "tcsh"], "bash"),
    ],
)
def test_a_callers_mistake_exits_with_two_and_three_parts(
    flatout: Run, arguments: list[str], said: str
) -> None:
    done = flatout(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
    assert three_parts(done.stderr), done.stderr
    assert "Traceback" not in done.stderr


def test_with_json_a_mistake_is_a_document_too(flatout: Run) -> None:
    done = flatout("limits", "--json", "--device", "tpu")
    document = json.loads(done.stdout)
    assert document["schema"] == "flatout.error/1"
    assert document["exit_code"] == done.returncode == 2
    assert document["error"]["kind"] == "UnknownName"
    assert document["error"]["remedy"]


def test_debug_shows_the_traceback(flatout: Run) -> None:
    done = flatout("limits", "--device", "tpu", "--debug")
    assert "Traceback" in done.stderr
    assert "UnknownName" in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_command(flatout: Run, shell: str) -> None:
    done = flatout("completion", shell)
    assert done.returncode == 0
    assert "_FLATOUT_COMPLETE" in done.stdout


def test_completion_completes_commands(flatout: Run) -> None:
    done = flatout(_FLATOUT_COMPLETE="bash_complete", COMP_WORDS="flatout doc", COMP_CWORD="1")
    assert "doctor" in done.stdout


def test_the_version_is_the_packages(flatout: Run) -> None:
    from flatout import __version__

    assert __version__ in flatout("--version").stdout
