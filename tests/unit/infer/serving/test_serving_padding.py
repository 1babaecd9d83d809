"""Items of different sizes: outputs are cut by the input that they belong to, or not padded at all."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from flatout.infer.serving.collating import Runner
from flatout.infer.serving.loading import Served
from flatout.infer.serving.proving import prove
from flatout.infer.serving.sizing import sized
from flatout.infer.serving.specs import parsed

CPU = torch.device("cpu")


def runner(call: Any, *specs: str, **pads: float) -> Runner:
    made = tuple(map(parsed, specs))
    return Runner(Served(name="it", call=call, specs=made, device=CPU, by_name=False), pads)


def numbers(count: int) -> np.ndarray[Any, Any]:
    return np.arange(1, count + 1, dtype=np.float32)


AB = ("a:float32[1-64]", "b:float32[1-64]")


def test_outputs_are_cut_by_the_input_that_they_belong_to() -> None:
    one = runner(lambda a, b: (b * 2, a + 1), *AB, a=0, b=0)
    assert prove(one).notes == ()
    for lengths in ((5, 20), (20, 5)):
        found = one([{"a": numbers(lengths[0]), "b": numbers(lengths[1])}])[0]
        assert found["output0"].tolist() == (2 * numbers(lengths[1])).tolist()
        assert found["output1"].tolist() == (1 + numbers(lengths[0])).tolist()


def test_both_sizes_of_one_input_are_told_apart() -> None:
    one = runner(lambda x: x.transpose(1, 2) * 2, "x:float32[1-16,1-16]", x=0)
    assert prove(one).notes == ()
    assert one([{"x": np.ones((3, 7), np.float32)}])[0]["output"].shape == (7, 3)


@pytest.mark.parametrize("call", [lambda a, b: torch.minimum(a[:, :1].expand(-1, 64)[:, : b.shape[1]], b)])
def test_an_output_as_long_as_one_of_two_is_cut_by_it(call: Any) -> None:
    one = runner(call, *AB, a=0, b=0)
    assert prove(one).notes == ()
    assert one([{"a": numbers(3), "b": numbers(9)}])[0]["output"].shape == (9,)


def test_where_an_output_may_belong_to_two_inputs_nothing_is_padded() -> None:
    def shorter_of_both(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        length = min(a.shape[1], b.shape[1])
        return a[:, :length] + b[:, :length]

    # Each makes it shorter by itself: one length alone is known, for both of them.
    one = runner(shorter_of_both, "a:float32[1-2]", "b:float32[1-2]", a=0, b=0)
    (note,) = prove(one).notes
    assert "no padding: output goes with the size of both a and b" in note
    other = runner(shorter_of_both, *AB, a=0, b=0)
    (note,) = prove(other).notes
    assert "no padding" in note
    assert not other.pads
    assert not other.follows
    assert other([{"a": numbers(5), "b": numbers(9)}])[0]["output"].shape == (5,)


def test_an_output_as_long_as_the_longer_of_two_is_not_padded() -> None:
    def longer_of_both(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.ones(len(a), max(a.shape[1], b.shape[1]))

    one = runner(longer_of_both, *AB, a=0, b=0)
    assert "no padding" in prove(one).notes[0]
    assert one([{"a": numbers(5), "b": numbers(9)}])[0]["output"].shape == (9,)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(10, 4)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        seen = self.table(ids) * mask[..., None]
        return {"each": seen, "all": seen.sum(1)}


def test_inputs_that_must_be_of_one_length_are_padded_together() -> None:
    one = runner(Masked().eval(), "ids:int64[1-64]", "mask:int64[1-64]", ids=0, mask=0)
    assert prove(one).notes == ()
    ids, mask = np.arange(1, 6), np.ones(5, np.int64)
    assert one([{"ids": ids, "mask": mask}])[0]["each"].shape == (5, 4)
    with pytest.raises(ValueError, match=r"of one length are expected.*ids \[5\], mask \[4\]"):
        one([{"ids": ids, "mask": mask[:4]}])


def test_two_pairs_of_one_length_each_are_told_apart() -> None:
    def both(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a + b, c * d

    specs = [f"{name}:float32[1-32]" for name in "abcd"]
    one = runner(both, *specs, a=0, b=0, c=0, d=0)
    assert prove(one).notes == ()
    found = one([{"a": numbers(3), "b": numbers(3), "c": numbers(9), "d": numbers(9)}])[0]
    assert (found["output0"].shape, found["output1"].shape) == ((3,), (9,))


def test_where_shorter_items_fail_nothing_is_padded_and_the_rest_is_served() -> None:
    model = nn.Sequential(
        nn.Unflatten(1, (1, -1)), nn.Conv1d(1, 4, 11), nn.AdaptiveAvgPool1d(1), nn.Flatten()
    ).eval()
    one = runner(model, "x:float32[1-30]", x=0)
    proof = prove(one)
    assert proof.batches
    (note,) = proof.notes
    assert "no padding: an item of another size makes the model fail (RuntimeError" in note
    assert not one.pads
    assert one([{"x": numbers(30)}])[0]["output"].shape == (4,)


def test_an_example_that_is_shorter_than_the_largest_item_proves_padding_all_the_same() -> None:
    one = runner(lambda x: x / x.shape[1], "x:float32[1-64]", x=0)
    one.served.examples["x"] = torch.ones(1, 1)
    assert "no padding: it changes answers" in prove(one).notes[0]


def test_a_model_that_fails_with_many_items_gets_fewer() -> None:
    def few(x: torch.Tensor) -> torch.Tensor:
        if len(x) > 4:
            raise RuntimeError("no more than four")
        return x

    one = runner(few, "x:float32[2]")
    found = sized(one, prove(one), most=64, latency_s=None, queue=None, wait_s=None)
    assert max(each.batch for each in found.tried) == 4
