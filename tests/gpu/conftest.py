"""Tests that need a real NVIDIA GPU; elsewhere each is skipped with the reason."""

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU that torch can use")
    for item in items:
        if "tests/gpu" in str(item.path):
            item.add_marker(skip)
