"""Torch's own snapshot in a file: whole or not at all."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from flatout.inside.snapshot_file import keep_snapshot

SNAPSHOT = {"segments": [{"address": 1 << 40, "blocks": []}], "device_traces": [[]]}


def test_it_is_kept_whole(tmp_path: Path) -> None:
    path = tmp_path / "out-of-memory.pickle"
    assert keep_snapshot(SNAPSHOT, path)
    assert pickle.loads(path.read_bytes()) == SNAPSHOT
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_one_that_would_be_too_large_leaves_nothing_behind_not_even_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "out-of-memory.pickle"
    assert keep_snapshot(SNAPSHOT, path)
    large = {"segments": [{"address": number, "blocks": ["x" * 100]} for number in range(10_000)]}
    assert not keep_snapshot(large, path, most_bytes=50_000)
    assert list(tmp_path.iterdir()) == []


def test_one_that_cannot_be_written_leaves_no_part(tmp_path: Path) -> None:
    class Stubborn:
        def __reduce__(self) -> Any:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        keep_snapshot({"segments": [Stubborn()]}, tmp_path / "out-of-memory.pickle")
    assert list(tmp_path.iterdir()) == []
