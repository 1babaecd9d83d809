"""What users type after `flatout profile`, turned into a command line, or refused with the way out."""

import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.records.errors import CallerMistake
from flatout.runtime.command import JobCommand, job_command


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script, a shell script, and a package."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "launch.sh").write_text("")
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text("")
    (tmp_path / "empty").mkdir()
    return tmp_path


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def mistake(*words: str) -> CallerMistake:
    with pytest.raises(CallerMistake) as raised:
        job_command(words)
    error = raised.value
    assert error.received
    assert error.expected
    assert error.remedy
    return error


@pytest.mark.parametrize(
    "words", [("train.py", "--lr", "3e-4"), ("-m", "pkg.train", "-x"), ("app",), ("./train.py",)]
)
def test_python_code_runs_under_our_own_python(words: tuple[str, ...]) -> None:
    command = job_command(words)
    assert command.words == (sys.executable, *words)
    assert command.own_python
    assert command.given == words


def test_another_python_can_be_named_and_is_not_ours(here: Path) -> None:
    other = program(here / "other" / "bin" / "python")
    command = job_command(["train.py"], python=str(other))
    assert command.words == (str(other), "train.py")
    assert not command.own_python


def test_a_python_that_is_not_there_is_refused() -> None:
    with pytest.raises(CallerMistake, match="no Python '/no/such/python'"):
        job_command(["train.py"], python="/no/such/python")


def test_a_shell_script_runs_in_a_shell_and_may_start_any_python() -> None:
    command = job_command(["launch.sh", "4"])
    assert command.words == (shutil.which("bash") or "sh", "launch.sh", "4")
    assert not command.own_python


def test_a_program_is_found_on_the_path(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = program(here / "bin" / "torchrun")
    monkeypatch.setenv("PATH", f"{launcher.parent}{os.pathsep}{os.environ['PATH']}")
    command = job_command(["torchrun", "--nproc-per-node", "2", "train.py"])
    assert command.words == (str(launcher), "--nproc-per-node", "2", "train.py")
    assert not command.own_python


def test_a_launcher_beside_our_python_is_ours() -> None:
    command = job_command([sys.executable, "train.py"])
    assert command.own_python


def test_nothing_is_refused() -> None:
    assert "no script was named" in mistake().received


def test_a_script_that_is_not_there_is_refused_with_the_one_that_was_meant() -> None:
    error = mistake("trian.py")
    assert "no script 'trian.py'" in error.received
    assert error.remedy == "did you mean 'train.py'?"
    assert "did you mean" not in mistake("somewhere/else.py").remedy


def test_a_script_in_another_folder_is_named_with_its_folder(here: Path) -> None:
    (here / "empty" / "finetune.py").write_text("")
    assert mistake("empty/finetun.py").remedy == "did you mean 'empty/finetune.py'?"


def test_a_program_that_is_not_there_is_refused() -> None:
    error = mistake("torchrunn", "train.py")
    assert "no program or script 'torchrunn'" in error.received


def test_folders_are_no_scripts(here: Path) -> None:
    (here / "folder.py").mkdir()
    assert "is no file" in mistake("folder.py").received
    assert "no program or script" in mistake("empty").received


def test_a_script_that_may_not_be_read_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "train.py").chmod(0)
    real = os.access
    # Root may read everything.
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "train.py" and real(path, mode))
    error = mistake("train.py")
    assert "cannot be read" in error.received
    assert error.remedy == "ls -l train.py"


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        (("train.py", "--name", "a b"), "train.py --name 'a b'"),
        (("-m", "pkg"), "-m pkg"),
        (("launch.sh",), "launch.sh"),
        ((sys.executable, "train.py"), f"-- {sys.executable} train.py"),
        (("app",), "-- app"),
    ],
)
def test_it_can_be_pasted_after_another_command(words: tuple[str, ...], typed: str) -> None:
    assert job_command(words).typed() == typed


@settings(deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\0"), max_size=20), max_size=5))
def test_arguments_survive_being_typed_again(arguments: list[str]) -> None:
    command = JobCommand(("python", "train.py", *arguments), own_python=True, given=("train.py", *arguments))
    assert shlex.split(command.typed()) == ["train.py", *arguments]
