"""Who holds what steps leave behind: by name, by line, by size; and who does not."""

import collections
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flatout.inside.retaining import retention  # noqa: E402
from flatout.inside.retaining.retention import Held, Retention  # noqa: E402

STEPS, MARKS = 40, (8, 16, 32)
GLOBAL: list[Any] = []


def line(mark: str) -> int:
    """Where a comment stands in this file."""
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(f"# {mark}"))


class Net(torch.nn.Module):
    """Keeps what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
        self.cache: dict[int, Any] = {}

    def forward(self, x: Any) -> Any:
        out = self.layer(x)
        self.cache[len(self.cache)] = out  # cached
        return out


class Job:
    """A loop around a body; who lives is noted at some steps."""

    def __init__(self, model: Any = None) -> None:
        self.model = model or torch.nn.Linear(64, 64)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.retention = Retention(torch, "cpu")
        self.kept: list[Any] = []

    def step(self, number: int, rows: int = 8) -> tuple[Any, Any]:
        out = self.model(torch.randn(rows, 64))
        loss = out.square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if number in MARKS:
            self.retention.mark(number)
        return out, loss

    def held(self, growth: float = 2048.0) -> Held:
        return self.retention.held(STEPS, growth)


def test_a_list_of_losses_with_their_graphs() -> None:
    job, losses = Job(), []
    for number in range(1, STEPS + 1):
        _, loss = job.step(number)
        losses.append(loss)  # losses
    (holder,) = job.held().holders
    assert (holder.name, holder.kind, holder.tensors) == ("losses[...]", "local", STEPS)
    assert holder.scope == "test_a_list_of_losses_with_their_graphs()"
    assert holder.keeps_graph
    assert holder.where is not None
    assert (holder.where.file, holder.where.line, holder.adds) == (__file__, line("losses"), True)
    assert ".item() or .detach()" in holder.fix
    assert f"test_retention.py:{line('losses')}" in str(holder)


def test_a_dict_on_a_module() -> None:
    job = Job(Net())
    for number in range(1, STEPS + 1):
        job.step(number)
    (holder,) = job.held().holders
    assert (holder.name, holder.kind) == ("Net.cache[...]", "attribute")
    assert holder.where is not None
    assert (holder.where.line, holder.where.function) == (line("cached"), "forward")
    assert holder.growth_bytes_per_step == 8 * 64 * 4
    assert holder.held_bytes == STEPS * 8 * 64 * 4


def test_a_global_list() -> None:
    job = Job()
    try:
        for number in range(1, STEPS + 1):
            out, _ = job.step(number)
            GLOBAL.append({"out": out.detach(), "step": number})  # global
        (holder,) = job.held().holders
    finally:
        GLOBAL.clear()
    assert (holder.name, holder.kind, holder.keeps_graph) == ("GLOBAL[...]", "global", False)
    assert holder.where is not None
    assert holder.where.line == line("global")
    assert "deque" in holder.fix


def watch_activations(model: Any) -> None:
    """A hook, and what it keeps."""
    activations: list[Any] = []

    def keep(_module: Any, _inputs: Any, output: Any) -> None:
        activations.append(output)  # hook

    model.register_forward_hook(keep)


def test_a_hook_that_keeps_activations() -> None:
    job = Job()
    watch_activations(job.model)
    for number in range(1, STEPS + 1):
        job.step(number)
    (holder,) = job.held().holders
    assert (holder.name, holder.kind) == ("activations[...]", "closure")
    assert holder.where is not None
    assert holder.where.line == line("hook")


def test_a_sum_that_carries_the_graphs_of_all_steps() -> None:
    job, total = Job(), torch.zeros(())
    for number in range(1, STEPS + 1):
        _, loss = job.step(number)
        total = total + loss  # total
    (holder,) = job.held().holders
    assert (holder.name, holder.tensors, holder.keeps_graph) == ("total", 1, True)
    assert holder.where is not None
    assert holder.where.line == line("total")


def test_a_tensor_that_is_made_anew_and_larger() -> None:
    job, seen = Job(), torch.zeros(0, 64)
    for number in range(1, STEPS + 1):
        out, _ = job.step(number)
        seen = torch.cat([seen, out.detach()])  # larger
    (holder,) = job.held().holders
    assert (holder.name, holder.tensors, holder.keeps_graph) == ("seen", 1, False)
    assert holder.growth_bytes_per_step == pytest.approx(2048, rel=0.5)
    assert holder.where is not None
    assert holder.where.line == line("larger")


class Metric:
    """Collects."""

    def __init__(self) -> None:
        self.seen = torch.zeros(0, 64)

    def update(self, out: Any) -> None:
        self.seen = torch.cat([self.seen, out])  # metric


def test_the_same_in_an_attribute() -> None:
    job, metric = Job(), Metric()
    for number in range(1, STEPS + 1):
        out, _ = job.step(number)
        metric.update(out.detach())
    (holder,) = job.held().holders
    assert (holder.name, holder.kind, holder.tensors) == ("Metric.seen", "attribute", 1)
    assert holder.where is not None
    assert (holder.where.line, holder.where.function) == (line("metric"), "update")


def test_several_holders_the_largest_first() -> None:
    job, small, large = Job(), [], []
    for number in range(1, STEPS + 1):
        out, _ = job.step(number)
        small.append(out.detach()[:1].clone())
        large.append(out.detach())
    assert [holder.name for holder in job.held().holders] == ["large[...]", "small[...]"]


def nothing(_out: Any) -> None:
    """Keeps nothing."""


@pytest.mark.parametrize("keep", [nothing, collections.deque(maxlen=4).append])
def test_what_comes_and_goes_has_no_holder(keep: Callable[[Any], None]) -> None:
    job = Job()
    for number in range(1, STEPS + 1):
        out, _ = job.step(number, rows=8 + number % 5)
        keep(out.detach())
    held = job.held()
    assert held.holders == ()
    assert held.notes


def test_what_was_made_in_the_first_steps_alone_has_no_holder() -> None:
    job, cache = Job(), []
    for number in range(1, STEPS + 1):
        out, _ = job.step(number)
        if number < MARKS[0]:
            cache.append(out.detach())
    assert cache
    assert job.held().holders == ()


def test_without_marks_it_says_so() -> None:
    assert "too few" in Retention(torch, "cpu").held(100).notes[0]


def test_among_very_many_objects_the_holder_is_found() -> None:
    job, kept = Job(), []
    crowd = [[number] for number in range(300_000)]
    for number in range(1, STEPS + 1):
        out, _ = job.step(number)
        kept.append([out.detach() for _ in range(50)])
    (holder,) = job.held().holders
    assert holder.name == "kept[...]"
    assert len(crowd) == 300_000


def test_a_search_that_takes_too_long_is_ended_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "SECONDS", 0.0)
    job = Job()
    for number in range(1, STEPS + 1):
        job.kept.append(job.step(number)[0].detach())
    assert "was ended after 0.0 s" in job.held().notes[0]
