"""A script whose Python has no torch: that is said, and the script is not blamed."""

import pytest

from flatout.records.errors import EnvironmentProblem
from flatout.records.trial import Outcome, Shield, Trial
from flatout.runtime.profiling import insist_on_libraries


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
