"""A search among all objects of a process that runs thousands of tests takes longer than in a job."""

import pytest

from flatout.inside.retaining import left_behind, retention


@pytest.fixture(autouse=True)
def _time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "SECONDS", 60.0)
    monkeypatch.setattr(left_behind, "_GRAPHS_S", 60.0)


@pytest.fixture(scope="module", autouse=True)
def _all_objects(whole_heap: None) -> None:
    """Holders are looked for among all of them."""
