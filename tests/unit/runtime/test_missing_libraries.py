"""A script whose Python has no torch: that is said, and the script is not blamed."""

import dataclasses
from pathlib import Path

import pytest

from flatout.records.errors import EnvironmentProblem, JobFailed
from flatout.records.trial import Outcome, Shield, Trial
from flatout.runtime.profiling import insist_on_libraries, insist_on_updates


def ended(outcome: Outcome, *said: str, command: tuple[str, ...] = ("/env/bin/python", "train.py")) -> Trial:
    return Trial(
        name="first",
        folder="f",
        command=command,
        outcome=outcome,
        updates=0,
        ranks=0,
        took_s=1.0,
        shield=Shield(kind="none"),
        said=said,
    )


def test_what_is_missing_is_named_and_where() -> None:
    with pytest.raises(EnvironmentProblem) as raised:
        insist_on_libraries(ended("failed", "  import torch", "ModuleNotFoundError: No module named 'torch'"))
    assert raised.value.received == "torch is not installed where the script runs, in /env/bin/python"
    assert raised.value.exit_code == 3


def test_a_shell_is_not_taken_for_the_python() -> None:
    said = "ModuleNotFoundError: No module named 'transformers'"
    with pytest.raises(EnvironmentProblem, match="in its Python"):
        insist_on_libraries(ended("failed", said, command=("/bin/bash", "train.sh")))


@pytest.mark.parametrize(
    "trial",
    [
        ended("failed", "ModuleNotFoundError: No module named 'torch.nothing'"),
        ended("failed", "ModuleNotFoundError: No module named 'engine'"),
        ended("ended", "No module named 'torch': doing without"),
        ended("failed"),
    ],
)
def test_anything_else_is_the_scripts_own(trial: Trial) -> None:
    insist_on_libraries(trial)


def test_a_package_of_this_folder_that_is_not_found_is_told_how_it_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = "ModuleNotFoundError: No module named 'mygpt.model'"
    trial = dataclasses.replace(ended("failed", said), exit_code=1)
    with pytest.raises(JobFailed) as elsewhere:
        insist_on_updates(trial, tmp_path)
    assert "PYTHONPATH" not in elsewhere.value.remedy
    (tmp_path / "mygpt").mkdir()
    with pytest.raises(JobFailed) as here:
        insist_on_updates(trial, tmp_path)
    assert "does not find mygpt, which lies in this folder" in here.value.received
    assert here.value.remedy.startswith("PYTHONPATH=. flatout")


@pytest.mark.parametrize(
    "said",
    [
        "AssertionError: Torch not compiled with CUDA enabled",
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
        "RuntimeError: No CUDA GPUs are available",
    ],
)
def test_a_script_that_wants_a_gpu_where_none_is_hears_of_the_cpu(tmp_path: Path, said: str) -> None:
    trial = dataclasses.replace(ended("failed", said), exit_code=1)
    with pytest.raises(JobFailed) as found:
        insist_on_updates(trial, tmp_path)
    assert "asks for a GPU, and torch sees none" in found.value.received
    assert said in found.value.received
    assert "CPU" in found.value.remedy
