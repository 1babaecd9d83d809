"""Dropout that drops the same elements whatever the tensor is made of."""

import pytest
import torch

from flatout.inside.same_random import draw_the_same, dropout


def dropped(tensor: torch.Tensor, p: float = 0.3) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return dropout(torch, tensor, p, True)


def test_half_precision_and_another_layout_drop_the_same_elements() -> None:
    plain = torch.randn(4, 6, 8, 10)
    out, mask = dropped(plain)
    others = (plain.to(torch.bfloat16), plain.to(memory_format=torch.channels_last))
    for other in others:
        kept, other_mask = dropped(other)
        assert torch.equal(other_mask, mask)
        assert kept.dtype == other.dtype
        assert kept.stride() == other.stride() == other_mask.stride()
        torch.testing.assert_close(kept.float(), out, rtol=0.02, atol=0)
    assert torch.equal(out != 0, mask)
    assert 0.6 < mask.float().mean() < 0.8
    torch.testing.assert_close(out[mask], plain[mask] / 0.7)


@pytest.mark.parametrize(("p", "train", "left"), [(0.3, False, 1.0), (0.0, True, 1.0), (1.0, True, 0.0)])
def test_all_or_nothing(p: float, train: bool, left: float) -> None:
    tensor = torch.ones(3, 5)
    out, mask = dropout(torch, tensor, p, train)
    assert torch.equal(out, tensor * left)
    assert torch.equal(mask, torch.full((3, 5), bool(left)))


def test_it_takes_the_place_of_torchs_own() -> None:
    draw_the_same(torch)
    table = torch._C._dispatch_dump("aten::native_dropout")
    assert "CUDA" in table
    from torch._inductor import config

    assert config.fallback_random
    config.fallback_random = False
