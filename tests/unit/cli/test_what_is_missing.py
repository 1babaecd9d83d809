"""Commands that lack something say what, with the command that has it."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from flatout.cli import fit, patch, tune
from flatout.records.errors import CallerMistake, JobFailed
from flatout.records.places import PROJECT_FOLDER
from flatout.records.runs import RunFolder
from tests.unit.report.test_draw_tuning import TUNING
from tests.unit.report.test_fit_page import FIT


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


def test_a_model_that_cannot_be_imagined_for_one_use_costs_that_row_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def imagined(request: Any, *_: Any, **__: Any) -> Any:
        if failing & set(request.command.given):
            raise JobFailed("it said last:\n    no adapters for this model", expected="one", remedy="none")
        return FIT

    monkeypatch.setattr("flatout.memory.fit.fit_job", imagined)
    (tmp_path / "config.json").write_text("{}")
    failing = {"lora"}
    done = CliRunner().invoke(fit.command, ["--json", "--hf", "config.json"], standalone_mode=False)
    told = json.loads(done.stdout)
    assert [row["use"] for row in told["models"]] == ["training", "inference"]
    assert [(row["use"], row["reason"]) for row in told["left_out"]] == [
        ("lora", "no adapters for this model")
    ]
    shown = CliRunner().invoke(fit.command, ["--hf", "config.json"], standalone_mode=False)
    assert "lora, batch 1: no adapters for this model" in shown.output
    failing = {"lora", "training", "inference"}
    done = CliRunner().invoke(fit.command, ["--json", "--hf", "config.json"], standalone_mode=False)
    assert isinstance(done.exception, JobFailed)
