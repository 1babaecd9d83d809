"""Varying shapes: a few compiled functions for all, the same answers, a count of what does not fit."""

from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from flatout.infer.buckets import Buckets, fitting
from flatout.infer.optimizing.calling import Arguments, arguments, opaque_in
from flatout.infer.optimizing.facts import facts_of
from flatout.infer.optimizing.guard import Guard
from flatout.infer.optimizing.optimize import _proven, _shapes
from flatout.infer.optimizing.preparing import Prepared
from flatout.infer.optimizing.search import Candidate
from flatout.infer.optimizing.shapes import Shapes
from flatout.infer.optimizing.ways import Way
from flatout.infer.sizes import halves
from flatout.records.errors import CallerMistake

CPU = torch.device("cpu")
COMPILED = Way(compile="default")


class Reader(nn.Module):
    """Attention with a mask of what is padding; one answer a token, one a text."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(50, 16), nn.Linear(16, 7)
        self.qkv = nn.Linear(16, 48)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        q, k, v = self.qkv(self.words(input_ids)).chunk(3, -1)
        mask = attention_mask[:, None, :].bool()
        seen = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        count = attention_mask.sum(1, keepdim=True)
        return {"tokens": self.out(seen), "text": (seen * attention_mask[..., None]).sum(1) / count}


def shapes_of(module: nn.Module, example: Arguments, spec: Buckets, batches: tuple[int, ...]) -> Shapes:
    prepared = Prepared(module, COMPILED, CPU, backend="eager")
    run = prepared.for_example(example)
    guard = Guard(module, [example], torch.float32)
    fits, why = _proven(Candidate(COMPILED, prepared, run), example, guard, spec)
    assert why == ""
    return Shapes(prepared, example, run, fits, batches, spec.length)


def compiles() -> int:
    return int(counters["stats"]["unique_graphs"])


def texts(samples: int, length: int) -> dict[str, Any]:
    return {
        "input_ids": torch.randint(1, 50, (samples, length)),
        "attention_mask": torch.ones(samples, length, dtype=torch.long),
    }


@torch.no_grad()
def test_all_batches_share_three_compiled_functions() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    before = compiles()
    run = shapes_of(module, arguments(torch.randn(16, 8)), Buckets(), halves(16))
    for samples in (*range(1, 17), *range(1, 17), 16, 40, 33):
        x = torch.randn(samples, 8)
        torch.testing.assert_close(run(x), module(x))
    # The example's own, one for a single sample, one for all others: never near the limit of eight.
    assert compiles() - before == 3
    assert run.as_written == 0
    assert run.padded > 0


@torch.no_grad()
def test_lengths_are_padded_where_the_user_says_how() -> None:
    torch.manual_seed(0)
    module = Reader().eval()
    spec = Buckets(length=(8, 16), sequences={"input_ids": 1, "attention_mask": 1}, fill={"input_ids": 3})
    run = shapes_of(module, arguments(texts(4, 8)), spec, halves(4))
    before = compiles()
    for samples in (1, 2, 3, 4, 6):
        for length in range(2, 17, 2):
            given = texts(samples, length)
            answer, wanted = run(**given), module(**given)
            torch.testing.assert_close(answer["tokens"], wanted["tokens"])
            torch.testing.assert_close(answer["text"], wanted["text"])
    assert compiles() - before <= 4
    assert run.as_written == 0
    run(**texts(2, 20))
    assert run.as_written == 1, "longer than the longest"


@torch.no_grad()
def test_what_cannot_be_padded_runs_as_written_and_is_counted() -> None:
    module = nn.Sequential(nn.Linear(8, 4)).eval()
    run = shapes_of(module, arguments(torch.randn(4, 8)), Buckets(), halves(4))
    before = compiles()
    for count in range(1, 4):
        x = torch.randn(2, count, 8)
        torch.testing.assert_close(run(x), module(x))
        assert run.as_written == count
    assert run(torch.randn(2, 8, dtype=torch.float64).float()).shape == (2, 4)
    assert compiles() - before <= 1


def test_samples_that_see_each_other_are_not_padded() -> None:
    class Centered(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x - x.mean(0, keepdim=True)

    example = arguments(torch.randn(4, 8))
    guard = Guard(Centered(), [example], torch.float32)
    prepared = Prepared(Centered(), Way(), CPU)
    fits, why = _proven(Candidate(Way(), prepared, prepared.eager), example, guard, Buckets())
    assert fits is None
    assert "larger batch" in why


def test_a_mask_that_is_not_heeded_is_found_out() -> None:
    class Careless(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean(1)

    example = arguments(torch.randn(4, 6, 3))
    guard = Guard(Careless(), [example], torch.float32)
    prepared = Prepared(Careless(), Way(), CPU)
    spec = Buckets(length=(8,), sequences={0: 1})
    fits, why = _proven(Candidate(Way(), prepared, prepared.eager), example, guard, spec)
    assert fits is None
    assert "longer sequence" in why


def test_what_does_not_grow_with_the_batch_by_one_is_refused() -> None:
    class Pairs(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x[:, None] - x[None]).flatten(0, 1)

    found = fitting(Pairs(), arguments(torch.randn(3, 2)), Buckets())
    assert isinstance(found, str)
    assert "becomes" in found


class Scaled(nn.Module):
    """By what the whole batch has: copies of a sample change nothing of that, a half of it does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax() / 7
        return self.layer((x / scale).round() * scale)


@pytest.mark.parametrize(("module", "in_parts"), [(Scaled(), False), (nn.Linear(8, 8), True)])
def test_a_larger_batch_is_cut_only_where_its_halves_answer_the_same(
    module: nn.Module, in_parts: bool
) -> None:
    torch.manual_seed(0)
    example = arguments(torch.randn(4, 8))
    prepared = Prepared(module.eval(), COMPILED, CPU, backend="eager")
    best, guard = (
        Candidate(COMPILED, prepared, prepared.for_example(example)),
        Guard(module, [example], torch.float32),
    )
    notes: list[str] = []
    facts = facts_of(module, example)
    shapes = _shapes(best, example, [example], facts, guard, None, notes)
    assert shapes is not None
    assert bool(notes) is not in_parts
    x = torch.randn(11, 8)
    with torch.no_grad():
        torch.testing.assert_close(shapes(x), module(x), atol=1e-5, rtol=1e-5)
    assert shapes.as_written == (0 if in_parts else 1)


class FixedBatch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(4, 8) + 1


def proven(module: nn.Module, example: Arguments, spec: Buckets) -> Any:
    prepared = Prepared(module, Way(), CPU)
    guard = Guard(module, [example], torch.float32)
    return _proven(Candidate(Way(), prepared, prepared.eager), example, guard, spec)


def test_a_larger_input_that_fails_is_a_reason_not_to_pad() -> None:
    class FewPlaces(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.ones(7)[: x.shape[1]]

    class Tight(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) > 5:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
            return x

    _, why = proven(FixedBatch(), arguments(torch.ones(4, 8)), Buckets())
    assert why.startswith("a larger input fails: RuntimeError")
    _, why = proven(Tight(), arguments(torch.ones(4, 8)), Buckets())
    assert why == "in a larger batch, it ran out of memory"
    _, why = proven(FewPlaces(), arguments(torch.ones(4, 6)), Buckets(length=(9,), sequences={0: 1}))
    assert why.startswith("in a longer sequence, RuntimeError")


def test_dimensions_count_from_the_end_too_and_must_be_there() -> None:
    fits = fitting(nn.Identity(), arguments(torch.ones(4, 6, 3)), Buckets(sequences={0: -2}))
    assert not isinstance(fits, str)
    assert fits.size_of((torch.ones(2, 9, 3),), {}) == (2, 9)
    found = fitting(nn.Identity(), arguments(torch.ones(4, 6)), Buckets(sequences={0: 2}))
    assert found == "the input 0 has 2 dimensions, and its sequence is to be in 2"


def test_sequences_without_lengths_to_pad_to_stay_whole() -> None:
    found, why = proven(nn.Identity(), arguments(torch.ones(4, 7, 5)), Buckets(sequences={0: 1}))
    assert why == ""
    size = found.size_of((torch.ones(3, 7, 5),), {})
    assert found.cut(found.padded(arguments(torch.ones(3, 7, 5)), (4, 0)).of(nn.Identity()), size).shape == (
        3,
        7,
        5,
    )


def test_what_hides_tensors_is_not_padded() -> None:
    class Cache:
        def __init__(self, keys: torch.Tensor) -> None:
            self.keys = keys

    class Caching(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            return {"out": x, "cache": Cache(x)}

    _, why = proven(Caching(), arguments(torch.ones(4, 8)), Buckets())
    assert why == "an output holds a Cache, and what is in it cannot be cut"
    assert opaque_in({"a": [torch.ones(1), None, (1, 2.0, "x", torch.float32)]}) == ""


@torch.no_grad()
def test_all_lengths_are_made_ready_at_once() -> None:
    torch.manual_seed(0)
    module = Reader().eval()
    spec = Buckets(length=(4, 8, 12), sequences={"input_ids": 1, "attention_mask": 1})
    run = shapes_of(module, arguments(texts(2, 8)), spec, (2,))
    run.prepare()
    assert set(run._by_size) == {(2, 4), (2, 8), (2, 12)}


def test_a_size_that_cannot_be_captured_is_told_once_and_runs_without_a_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = nn.Linear(8, 4).eval()
    run = shapes_of(module, arguments(torch.ones(4, 8)), Buckets(), (2, 4))
    tries: list[Any] = []

    def fails(*given: Any) -> Any:
        tries.append(given)
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(run._prepared, "captured", fails)
    with pytest.warns(UserWarning, match="2 samples run without a CUDA graph: RuntimeError"):
        run(torch.ones(1, 8))
    x = torch.ones(2, 8)
    torch.testing.assert_close(run(x), module(x).detach())
    assert len(tries) == 1


def test_sizes_are_halves() -> None:
    assert halves(1) == (1,)
    assert halves(12) == (1, 2, 3, 6, 12)
    assert len(halves(4096)) <= 8
    assert halves(4096)[0] == 1


@pytest.mark.parametrize("wrong", [{"batch": (0, 4)}, {"batch": tuple(range(1, 20))}, {"length": (128,)}])
def test_wrong_sizes_are_answered(wrong: dict[str, Any]) -> None:
    with pytest.raises(CallerMistake):
        Buckets(**wrong)
