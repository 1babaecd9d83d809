"""Which files train: real ones that do, and such as only look like it."""

from pathlib import Path

import pytest

from flatout.analyze.job_source import read_job_source

REPOSITORY = Path(__file__).parents[3]
ZOO = sorted(REPOSITORY.glob("tests/e2e/zoo/*.py"))


@pytest.mark.parametrize("path", ZOO, ids=lambda path: path.stem)
def test_every_shape_of_the_zoo_is_seen_to_train_and_to_start(path: Path) -> None:
    found = read_job_source(path.read_text())
    assert found is not None
    assert found.trains
    assert found.starts


@pytest.mark.parametrize(
    "text",
    [
        "import numpy\nfor x in range(3):\n    x.backward()\n",
        "from .torch import net\nnet.backward()\n",
        "'import torch'\n",
    ],
)
def test_a_file_without_the_libraries_is_none_of_ours(text: str) -> None:
    assert read_job_source(text) is None


def test_a_module_that_only_defines_things_starts_nothing() -> None:
    found = read_job_source(
        "import torch\ndef step(loss):\n    for _ in range(2):\n        loss.backward()\n"
    )
    assert found is not None
    assert found.trains
    assert not found.starts


def test_putting_a_model_into_its_mode_is_no_training() -> None:
    found = read_job_source("import torch\nmodel = torch.nn.Linear(1, 1)\nmodel.train()\nmodel.eval()\n")
    assert found is not None
    assert not found.trains
    assert not found.trains_elsewhere


def test_a_trainer_that_is_made_and_never_started_does_not_train() -> None:
    made = "from transformers import Trainer\ntrainer = Trainer()\n"
    found, started = read_job_source(made), read_job_source(made + "trainer.train()\n")
    assert found is not None
    assert started is not None
    assert not found.trains
    assert started.trains == "Trainer.train (line 3)"


def test_a_training_in_another_file_is_seen_by_its_call() -> None:
    found = read_job_source(
        "import torch\nfrom engine import train_one_epoch\n"
        "if __name__ == '__main__':\n    train_one_epoch()\n"
    )
    assert found is not None
    assert not found.trains
    assert found.trains_elsewhere == "it calls train_one_epoch (line 4)"
