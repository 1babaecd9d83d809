"""Ranks that play the scenes of this folder's tests, once for all of them: each starts a torch of its own."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.parallel.trainings import played_by

PLAYER = str(Path(__file__).with_name("player.py"))


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return played_by(2, PLAYER, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="session")
def four(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return played_by(4, PLAYER, tmp_path_factory.mktemp("four"))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """As many as the tensors here are worth."""
    import torch

    torch.set_num_threads(1)
