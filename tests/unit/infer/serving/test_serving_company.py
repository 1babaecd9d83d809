"""Others beside an item: of other values, such as its model takes, and told when they change its answer."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from flatout.infer.serving.collating import Runner
from flatout.infer.serving.company import companies
from flatout.infer.serving.loading import Served
from flatout.infer.serving.proving import prove
from flatout.infer.serving.specs import parsed
from flatout.infer.serving.wire import Item


def runner(call: Any, *specs: str, **examples: torch.Tensor) -> Runner:
    made, cpu = tuple(map(parsed, specs)), torch.device("cpu")
    return Runner(Served(name="it", call=call, specs=made, device=cpu, by_name=False, examples=examples), {})


def of_all(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean()) / (x.std() + 1e-3)


def largest_of_all(x: torch.Tensor) -> torch.Tensor:
    return x / x.abs().amax().clamp_min(1e-3)


@pytest.mark.parametrize("mixing", [of_all, largest_of_all])
@pytest.mark.parametrize(
    "example",
    [
        torch.randn(1, 16, generator=torch.Generator().manual_seed(0)),
        torch.ones(1, 16),
        torch.zeros(1, 16),
        torch.rand(1, 16, generator=torch.Generator().manual_seed(0)),
        torch.full((1, 1), 0.5),
        torch.tensor(2.0).reshape(1),
    ],
)
def test_statistics_of_the_whole_batch_are_seen(mixing: Any, example: torch.Tensor) -> None:
    sizes = ",".join(map(str, example.shape[1:]))
    proof = prove(runner(mixing, f"x:float32[{sizes}]", x=example))
    assert not proof.batches
    assert "items change each other's answers" in proof.notes[0]


def test_what_goes_from_row_to_row_is_seen_in_both_directions() -> None:
    for mixing in (lambda x: x.cumsum(0), lambda x: x.flip(0).cumsum(0).flip(0), lambda x: x - x[:1]):
        assert not prove(runner(mixing, "x:float32[4]", x=torch.ones(1, 4))).batches


@pytest.mark.parametrize("ids", [torch.ones(1, 8), torch.zeros(1, 8), torch.arange(8).reshape(1, 8)])
def test_statistics_of_integers_are_seen(ids: torch.Tensor) -> None:
    one = runner(lambda ids: ids.float() - ids.float().mean(), "ids:int64[8]", ids=ids.long())
    assert not prove(one).batches


@pytest.mark.parametrize("kind", ["bool", "int64"])
def test_a_mask_that_mixes_is_seen_though_the_example_is_all_true(kind: str) -> None:
    def kept(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x * mask.float().mean()

    examples = {"x": torch.ones(1, 4), "mask": torch.ones(1, 4).to(getattr(torch, kind))}
    assert not prove(runner(kept, "x:float32[4]", f"mask:{kind}[4]", **examples)).batches


def test_a_model_for_one_size_of_batch_that_mixes_gets_one_item_in_each() -> None:
    def four(x: torch.Tensor) -> torch.Tensor:
        if len(x) != 4:
            raise RuntimeError("expected a batch of 4")
        return x - x.mean()

    one = runner(four, "x:float32[2]")
    proof = prove(one)
    assert not proof.batches
    assert one.sizes == (4,)
    assert one([{"x": np.array([1, 3], np.float32)}])[0]["output"].tolist() == [-1, 1]


@pytest.mark.parametrize("example", [[5, 900, 37, 12], [0, 0, 0, 0], [3, 3, 3, 3], [-100, 4, 7, -100]])
def test_integers_stay_in_what_the_example_shows(example: list[int]) -> None:
    item, spec = {"ids": np.array(example), "x": np.ones(3, np.float32)}, parsed("ids:int64[4]")
    found = list(companies({"ids": spec, "x": parsed("x:float32[3]")}, item))
    assert len(found) >= 3
    for one in (each["ids"] for pair in found for each in pair):
        assert one.max() <= max(example)
        assert one.min() >= min(0, *example)
        assert min(example) >= 0 or set(one.tolist()) <= set(example)


def test_masks_shares_and_codes_stay_what_they_are() -> None:
    item: Item = {
        "bias": np.array([0.0, -np.inf, 0.0], np.float32),
        "share": np.array([0.1, 0.7, 0.2], np.float32),
        "code": np.array([3.0, 5.0, 9.0], np.float32),
        "large": np.array([6e4, -5e4, 1e4], np.float16),
    }
    specs = {name: parsed(f"{name}:{array.dtype}[3]") for name, array in item.items()}
    for pair in companies(specs, item):
        for one in pair:
            assert one["bias"].dtype == np.float32
            assert np.isinf(one["bias"]).sum() == 1
            assert one["share"].min() >= 0
            assert one["share"].max() <= 1
            assert set(one["code"]) <= {3.0, 5.0, 9.0}
            assert np.isfinite(one["large"]).all()


def test_the_first_two_others_are_neither_the_item_nor_each_other() -> None:
    for array in (np.ones((2, 3), np.float32), np.zeros(1, np.float32), np.arange(6), np.ones(2, bool)):
        spec = parsed(f"x:{array.dtype}[{','.join(map(str, array.shape))}]")
        one, other = next(companies({"x": spec}, {"x": array}))
        assert one["x"].dtype == array.dtype
        assert not np.array_equal(one["x"], array)
        assert array.dtype.kind == "b" or not np.array_equal(one["x"], other["x"])


def test_a_model_that_refuses_bold_company_is_proven_with_a_gentler_one() -> None:
    def narrow(x: torch.Tensor) -> torch.Tensor:
        if x.abs().max() > 1.5:
            raise ValueError("only values of the usual range")
        return x * 2

    def ordered(lengths: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if (lengths != 7).any():
            raise ValueError("only seven")
        return x + lengths[:, None]

    given = torch.linspace(-1, 1.4, 8).reshape(1, 8)
    assert prove(runner(narrow, "x:float32[8]", x=given)).batches
    seven = {"n": torch.full((1,), 7), "x": given}
    assert prove(runner(ordered, "n:int64[]", "x:float32[8]", **seven)).batches
    assert not prove(runner(lambda x: narrow(x) - x.mean(), "x:float32[8]", x=given)).batches


def test_a_model_that_refuses_all_company_is_served_one_by_one() -> None:
    def alone(x: torch.Tensor) -> torch.Tensor:
        if not (x == x[:1]).all():
            raise ValueError("one at a time")
        return x

    proof = prove(runner(alone, "x:float32[4]"))
    assert proof.notes == ("no batches: it takes one item at a time (ValueError: one at a time)",)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_usual_models_are_served_in_batches(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    name = str(dtype).removeprefix("torch.")
    layers = nn.Sequential(
        nn.Linear(16, 64), nn.LayerNorm(64), nn.ReLU(), nn.BatchNorm1d(64), nn.Linear(64, 8)
    )
    model = layers.to(dtype).eval()
    for example in (torch.ones(1, 16), torch.zeros(1, 16), 100 * torch.randn(1, 16)):
        assert prove(runner(model, f"x:{name}[16]", x=example.to(dtype))).batches
    words = nn.Sequential(nn.Embedding(50, 16), nn.TransformerEncoderLayer(16, 2, 32, batch_first=True))
    ids = torch.randint(1, 50, (1, 12))
    assert prove(runner(words.to(dtype).eval(), "ids:int64[12]", ids=ids)).batches
