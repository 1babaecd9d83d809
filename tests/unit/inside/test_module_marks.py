"""Marks around calls of modules: there while a window records, gone afterwards."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from flatout.inside.module_marks import ModuleMarks
from flatout.inside.session import Session
from flatout.records.session import Order


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())

    def forward(self, x: torch.Tensor, *, fail: bool = False) -> torch.Tensor:
        if fail:
            raise ValueError("on purpose")
        return x + self.layers(x)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: torch.Tensor, *, fail: bool = False) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, fail=fail)
        return x


@pytest.fixture
def marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleMarks]:
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None:  # what other tests of this process have compiled
        monkeypatch.setitem(dynamo.counters["stats"], "unique_graphs", 0)
    session = Session(torch, Order(folder=str(tmp_path)))
    session.thread = threading.get_ident()
    marks = ModuleMarks(session)
    yield marks
    marks.end()


def marked(model: Any, **more: Any) -> list[str]:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        if more:
            with pytest.raises(ValueError, match="on purpose"):
                model(torch.ones(1, 4), **more)
        else:
            model(torch.ones(1, 4))
    names = [event.name for event in profiler.events() if event.name.startswith("flatout.module: ")]
    return [name.removeprefix("flatout.module: ") for name in names]


def test_every_module_has_its_name_and_layers_that_repeat_one(marks: ModuleMarks) -> None:
    model = Net()
    marks.begin([model])
    inner = ["Net.blocks.*", "Net.blocks.*.layers", "Net.blocks.*.layers.0", "Net.blocks.*.layers.1"]
    assert sorted(marked(model)) == sorted(["Net", *inner, *inner])
    assert marked(torch.nn.Linear(4, 4)) == ["Linear"]
    marks.end()
    assert marked(model) == []


def test_a_call_that_raises_leaves_no_mark_open(marks: ModuleMarks) -> None:
    model = Net()
    marks.begin([model])
    assert sorted(marked(model, fail=True)) == ["Net", "Net.blocks.*"]
    assert not marks._open
    assert len(marked(model)) == 9


def test_what_other_threads_call_is_not_marked(marks: ModuleMarks) -> None:
    model = Net()
    marks._session.thread = -1
    marks.begin([model])
    assert marked(model) == []


def test_a_job_that_compiles_goes_without(marks: ModuleMarks, monkeypatch: pytest.MonkeyPatch) -> None:
    utils: Any = pytest.importorskip("torch._dynamo.utils")
    monkeypatch.setitem(utils.counters["stats"], "unique_graphs", 1)
    marks.begin([Net()])
    assert not marks._hooks
