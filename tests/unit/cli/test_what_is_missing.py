"""Commands that lack something say what, with the command that has it."""

import dataclasses
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from flatout.cli import patch, tune
from flatout.records.errors import CallerMistake
from flatout.records.places import PROJECT_FOLDER
from flatout.records.runs import RunFolder
from tests.unit.report.test_draw_tuning import TUNING


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(command: click.Command, *words: str) -> CallerMistake:
    mistake = CliRunner().invoke(command, words, standalone_mode=False).exception
    assert isinstance(mistake, CallerMistake)
    return mistake


def test_resuming_without_the_script_names_the_whole_command() -> None:
    assert refused(tune.command, "--resume", "latest").remedy == "flatout tune train.py"
    words = ("tune", "--budget", "2m", "train.py", "--lr", "3e-4")
    RunFolder.create(Path(PROJECT_FOLDER), command="tune", arguments=words)
    again = refused(tune.command, "--resume", "latest")
    assert again.remedy == "flatout tune --resume latest --budget 2m train.py --lr 3e-4"


def test_a_tuning_without_gain_leaves_nothing_to_patch() -> None:
    folder = RunFolder.create(Path(PROJECT_FOLDER), command="tune", arguments=("tune", "train.py"))
    folder.write("tune", 1, dataclasses.replace(TUNING, run=folder.manifest.id, plan=None))
    mistake = refused(patch.command)
    assert "found no gain" in mistake.received
    assert mistake.remedy.startswith(f"flatout report {folder.manifest.id}")
