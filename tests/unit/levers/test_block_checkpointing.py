"""Checkpoints around repeated blocks: found in any model, the same gradients, less kept."""

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flatout.levers.block_checkpointing import BlockCheckpointing  # noqa: E402
from flatout.levers.blocks import repeated_blocks  # noqa: E402
from flatout.levers.job import JobFacts  # noqa: E402
from flatout.levers.lever import Refused  # noqa: E402

nn = torch.nn


class Block(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm, self.dropout = nn.BatchNorm1d(width), nn.Dropout(0.2)

    def forward(self, x: Any, *, scale: float = 1.0) -> Any:
        return x + scale * self.dropout(self.down(torch.nn.functional.gelu(self.up(self.norm(x)))))


class Stacked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(16, 2)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for block in self.blocks:
            x = block(x, scale=0.5)
        return self.head(x)


def scene_of(model: Any) -> Any:
    return SimpleNamespace(torch=torch, roots=lambda: [model])


def trained(model: Any, steps: int = 3) -> tuple[list[Any], int]:
    """Everything that the model has learned, and how many values were kept for the way back."""
    kept = 0

    def keep(value: Any) -> Any:
        nonlocal kept
        kept += value.numel()
        return value

    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
            loss = model(torch.randn(8, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [value.clone() for value in model.state_dict().values()], kept


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_it_learns_the_same_bit_for_bit_and_keeps_less(share: float) -> None:
    torch.manual_seed(0)
    plain = Stacked()
    other = Stacked()
    other.load_state_dict(plain.state_dict())
    lever = BlockCheckpointing(scene_of(other), {"share": share})
    lever.apply()

    expected, kept = trained(plain)
    found, kept_now = trained(other)

    assert all(torch.equal(one, two) for one, two in zip(expected, found, strict=True))
    assert kept_now < (0.4 if share == 1.0 else 0.75) * kept
    lever.undo()
    assert all("forward" not in vars(block) for block in other.blocks)


def test_a_forward_of_the_blocks_own_comes_back() -> None:
    model = Stacked()
    own = model.blocks[0].forward
    model.blocks[0].forward = own
    lever = BlockCheckpointing(scene_of(model), {})
    lever.apply()
    assert model.blocks[0].forward is not own
    lever.undo()
    assert model.blocks[0].forward is own


def test_a_root_inside_of_another_has_its_blocks_once() -> None:
    outer = nn.Sequential(inner := Stacked())
    lever = BlockCheckpointing(SimpleNamespace(torch=torch, roots=lambda: [inner, outer]), {})
    lever.apply()
    assert len(lever._found) == 4
    lever.undo()
    assert all("forward" not in vars(block) for block in inner.blocks)


def test_evaluation_keeps_nothing_and_needs_no_checkpoint() -> None:
    model = Stacked()
    x = torch.randn(8, 4)
    model.eval()
    expected = model(x)
    BlockCheckpointing(scene_of(model), {}).apply()
    assert torch.equal(model(x), expected)
    with torch.no_grad():
        assert torch.equal(model(x), expected)


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (Stacked(), 4),
        (nn.Sequential(nn.Linear(4, 16), *(Block() for _ in range(3))), 0),
        (nn.Sequential(nn.Linear(4, 4), nn.Sequential(*(Block(4) for _ in range(3)))), 3),
        (nn.ModuleList(nn.Sequential(Block(), Block()) for _ in range(2)), 4),
        (nn.Sequential(*(nn.Linear(4, 4) for _ in range(8))), 0),
        (nn.Sequential(nn.Linear(256, 256), nn.Sequential(Block(4), Block(4))), 0),
        (nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, batch_first=True), 3), 3),
    ],
    ids=["list", "mixed", "nested", "stages", "plain layers", "a small part", "torch's own"],
)
def test_blocks_are_found(model: Any, count: int) -> None:
    assert len(repeated_blocks(torch, [model])) == count


def test_what_has_no_blocks_is_refused() -> None:
    with pytest.raises(Refused, match="no blocks"):
        BlockCheckpointing(scene_of(nn.Linear(2, 2)), {}).apply()
    assert "no blocks" in BlockCheckpointing.check(JobFacts(habits={"repeated_blocks": 0}))
    assert BlockCheckpointing.check(JobFacts(habits={"repeated_blocks": 12})) == ""
    assert "already" in BlockCheckpointing.check(
        JobFacts(habits={"repeated_blocks": 12, "hf_checkpointing": {"supported": True, "on": True}})
    )
