"""Who does more in a call than answer runs as written, and is left as it was found."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from flatout.infer.optimizing.answers import Unseen, numbers_in
from flatout.infer.optimizing.calling import Arguments, arguments, key_of
from flatout.infer.optimizing.effects import effects_of
from flatout.infer.optimizing.optimize import make_optimized
from flatout.infer.optimizing.preparing import Prepared
from flatout.infer.optimizing.state import State
from flatout.infer.optimizing.ways import Way

X = torch.randn(4, 8)


class Box:
    """An answer of a module's own making."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside


class Slots:
    __slots__ = ("inside",)

    def __init__(self, inside: Any) -> None:
        self.inside = inside


class Does(nn.Module):
    """Whatever it is told to, beside its layer."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.layer, self.what = nn.Linear(8, 8), what
        self.calls, self.past, self.seen = 0, None, {"sizes": [1]}
        self.box, self.table = Box(0), None

    def forward(self, x: torch.Tensor) -> Any:
        if self.what == "counts":
            self.calls += 1
        if self.what == "streams":
            self.past = x if self.past is None else 0.9 * self.past + x
        if self.what == "collects":
            self.seen["sizes"].append(len(x))
        if self.what == "hides":
            self.box.inside += 1
        if self.what == "grows":
            setattr(self, f"extra{len(vars(self))}", x)
        if self.what == "overwrites":
            x.mul_(1.01)
        if self.what == "makes a table once" and self.table is None:
            self.table = torch.arange(8.0)
        y = self.layer(x)
        return {"slots": Slots(y), "nothing": None, "object": Box([y, 1.5])}.get(self.what, y)


def effects(module: nn.Module) -> str:
    before = State(module)
    arguments(X).copied().of(module)
    return effects_of(module, arguments(X), before)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("answers", ""),
        ("makes a table once", ""),
        ("object", ""),
        ("counts", "(calls)"),
        ("streams", "(past)"),
        ("collects", "(seen)"),
        ("hides", "(box)"),
        ("grows", "(extra"),
        ("overwrites", "write into what they are given"),
        ("slots", "holds a Slots"),
        ("nothing", "nothing that could be compared"),
    ],
)
def test_what_a_call_does_beside_answering(what: str, says: str) -> None:
    found = effects(Does(what).eval())
    assert says in found
    assert bool(found) is bool(says)


@pytest.mark.parametrize("what", ["counts", "streams", "collects", "hides", "grows", "overwrites"])
def test_it_runs_as_written_and_is_left_as_it_was(what: str) -> None:
    module, mine = Does(what).eval(), X.clone()
    names = set(vars(module))
    made = make_optimized(module, mine, "latency", allow=(), budget_s=5.0, buckets=None, backend="eager")
    assert made.report.chosen == ()
    assert "it runs as it was written" in made.report.notes[0]
    assert (module.calls, module.past, module.seen, module.box.inside) == (0, None, {"sizes": [1]}, 0)
    assert set(vars(module)) == names
    assert torch.equal(mine, X)


def test_tensors_that_were_written_into_are_put_back() -> None:
    module = Does("answers")
    module.past, module.seen["held"] = torch.zeros(3), torch.ones(2)
    state = State(module)
    assert state.other_values() == []
    module.past += 1
    module.seen["held"] = torch.ones(2)  # another tensor is another value
    assert sorted(state.other_values()) == ["past", "seen"]
    state.put_back()
    assert state.other_values() == []
    assert torch.equal(module.past, torch.zeros(3))


def test_objects_that_hold_each_other_are_looked_at_once() -> None:
    module = Does("answers")
    module.box.inside = module.box
    state = State(module)
    assert state.other_values() == []
    module.box.other = 1
    assert state.other_values() == ["box"]


def test_all_numbers_of_an_answer_are_found() -> None:
    @dataclasses.dataclass
    class Made:
        score: float
        boxes: Any

    value = {"a": Made(0.5, Box((torch.ones(2), 3))), "b": [None, "ok", torch.zeros(1).numpy(), True]}
    found = [one.tolist() for one in numbers_in(value)]
    assert found == [0.5, [1.0, 1.0], 3, [111, 107], [0.0], True]
    value["c"] = value
    assert len(numbers_in(value)) == 6
    with pytest.raises(Unseen, match="a Slots"):
        numbers_in([Slots(1)])


def test_a_call_with_objects_of_the_callers_is_nobody_elses() -> None:
    @dataclasses.dataclass(frozen=True)
    class Batch:
        x: torch.Tensor
        flag: bool

    assert key_of((X, Box(1)), {}) is None
    assert key_of((Batch(X, True),), {}) == key_of((Batch(X + 1, True),), {})
    assert key_of((Batch(X, True),), {}) != key_of((Batch(X, False),), {})
    assert key_of((X, 1), {}) != key_of((X, True), {})


def test_precision_is_what_was_chosen_under_the_callers_autocast_too() -> None:
    layer, quiet = nn.Linear(8, 8).eval(), Way(inference_mode=True)
    chosen = Prepared(layer, quiet, torch.device("cpu")).eager
    as_it_is = Prepared(layer, Way(), torch.device("cpu")).eager
    with torch.autocast("cpu", torch.bfloat16):
        assert chosen(X).dtype == torch.float32
        assert as_it_is(X).dtype == torch.bfloat16


def test_others_like_an_example_are_such_as_the_module_takes() -> None:
    from flatout.infer.optimizing.guard import Guard

    class Tabular(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList([nn.Embedding(3, 4), nn.Embedding(500, 4)])

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return torch.cat([table(ids[:, at]) for at, table in enumerate(self.tables)], -1)

    class Insists(nn.Module):
        def forward(self, share: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            assert bool(((share >= 0) & (share <= 1)).all())
            packed = nn.utils.rnn.pack_padded_sequence(share, lengths, batch_first=True)
            return packed.data.sum(-1)

    ids = torch.tensor([[0, 400], [1, 300], [2, 499]])
    tabular = Guard(Tabular(), [arguments(ids)], torch.float32)
    assert tabular.cases == 3
    assert all(int(case.args[0][:, 0].max()) <= 2 for case in tabular._cases)
    example = Arguments((torch.tensor([[0.0, 1.0], [0.5, 0.0]])[..., None], torch.tensor([2, 1])), {})
    assert Guard(Insists(), [example], torch.float32).cases == 3
