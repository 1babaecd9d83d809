"""The guard: honest rounding passes, whatever the model; what is wrong does not."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from flatout.infer.optimizing.calling import arguments
from flatout.infer.optimizing.guard import Guard
from flatout.infer.optimizing.preparing import Prepared
from flatout.infer.optimizing.ways import Way

CPU = torch.device("cpu")
BF16, FP16 = Way(precision="bf16-autocast"), Way(precision="fp16-weights")


class Block(nn.Module):
    """A residual block with in-place operations."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu_(x + self.second(torch.relu_(self.norm(self.first(x)))))


def images() -> tuple[nn.Module, Any]:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), Block(16), Block(16), nn.Flatten(), nn.Linear(16 * 36, 10))
    with torch.no_grad():
        model(torch.randn(16, 3, 8, 8))
    return model.eval(), torch.randn(4, 3, 8, 8)


def sequences() -> tuple[nn.Module, Any]:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return nn.Sequential(
        nn.Embedding(50, 32), nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    ).eval(), (torch.randint(0, 50, (4, 12)),)


@pytest.fixture(scope="module", params=[images, sequences])
def guarded(request: pytest.FixtureRequest) -> tuple[nn.Module, Guard]:
    torch.manual_seed(0)
    model, example = request.param()
    return model, Guard(model, [arguments(example)], torch.float32)


@pytest.mark.parametrize("way", [Way(), Way(inference_mode=True), BF16, Way(precision="bf16-weights"), FP16])
def test_honest_rounding_passes(guarded: tuple[nn.Module, Guard], way: Way) -> None:
    model, guard = guarded
    judged = guard.judge(Prepared(model, way, CPU).eager, way)
    assert judged.refusal == ""
    assert judged.error is not None
    assert judged.allowed is not None
    assert judged.error <= judged.allowed


@pytest.mark.parametrize("way", [Way(), BF16])
def test_a_layer_that_is_off_by_a_fifth_does_not(guarded: tuple[nn.Module, Guard], way: Way) -> None:
    model, guard = guarded
    wrong = copy.deepcopy(model)
    with torch.no_grad():
        [one for one in wrong.parameters() if one.dim() > 1][-1].mul_(1.2)
    assert "rounding explains" in guard.judge(wrong, way).refusal


def test_rounding_of_bf16_is_not_taken_for_another_order_of_sums(guarded: tuple[nn.Module, Guard]) -> None:
    model, guard = guarded
    assert guard.judge(Prepared(model, BF16, CPU).eager, Way()).refusal


def test_what_is_not_finite_is_refused(guarded: tuple[nn.Module, Guard]) -> None:
    model, guard = guarded

    def overflows(*args: Any) -> Any:
        return model(*args).masked_fill(torch.tensor(True), float("nan"))

    assert "not finite" in guard.judge(overflows, BF16).refusal


def test_another_dtype_is_refused(guarded: tuple[nn.Module, Guard]) -> None:
    model, guard = guarded
    assert "torch.float64" in guard.judge(lambda *args: model(*args).double(), BF16).refusal


def test_other_choices_are_refused_where_numbers_are_near() -> None:
    """All scores lie so near each other that an error is little in them, and much in which is the largest."""
    torch.manual_seed(0)
    model = nn.Linear(8, 5).eval()
    guard = Guard(model, [arguments(torch.randn(256, 8))], torch.float32)

    def shuffled(x: torch.Tensor) -> torch.Tensor:
        out = model(x).clone()
        top = out.topk(2, dim=-1)
        # The first and the second change places, whatever lies between them.
        return out.scatter(1, top.indices, top.values.flip(-1))

    assert guard.judge(shuffled, BF16).refusal


def test_outputs_that_are_choices_are_compared_as_such() -> None:
    class Tokens(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).argmax(-1)

    torch.manual_seed(0)
    model = Tokens(8, 5).eval()
    guard = Guard(model, [arguments(torch.randn(256, 8))], torch.float32)
    assert guard.judge(Prepared(model, BF16, CPU).eager, BF16).refusal == ""
    assert "choices are others" in guard.judge(lambda x: (model(x) + 1) % 5, BF16).refusal


def test_another_shape_or_number_of_outputs_is_refused() -> None:
    model = nn.Linear(8, 5).eval()
    guard = Guard(model, [arguments(torch.randn(4, 8))], torch.float32)
    assert "shape" in guard.judge(lambda x: model(x)[:, :3], Way()).refusal
    assert "outputs" in guard.judge(lambda x: (model(x), model(x)), Way()).refusal


def test_random_numbers_and_inputs_are_left_alone() -> None:
    class Greedy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(torch.randn_like(x))

    given = torch.zeros(4, 8)
    state = torch.get_rng_state()
    guard = Guard(Greedy(), [arguments(given)], torch.float32)
    assert guard.judge(Greedy(), Way()).refusal == ""
    assert torch.equal(given, torch.zeros(4, 8))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("choices", "others", "passes"), [(1, 1, False), (8, 1, False), (16, 1, True), (16, 2, False)]
)
def test_of_few_choices_none_may_be_others(choices: int, others: int, passes: bool) -> None:
    class Sure(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x[:, 0] > 0).long()

    x = torch.where(torch.arange(choices) % 2 > 0, 5.0, -5.0)[:, None] * torch.ones(1, 4)

    def wrong(x: torch.Tensor) -> torch.Tensor:
        found = Sure()(x)
        found[:others] += 1
        return found

    guard = Guard(Sure(), [arguments(x)], torch.float32)
    assert guard.judge(Sure(), BF16).refusal == ""
    assert (guard.judge(wrong, BF16).refusal == "") is passes
    # Where nothing is to be rounded otherwise, none may.
    assert "choices are others" in guard.judge(wrong, Way()).refusal


def test_infinities_hide_nothing() -> None:
    class Filtered(nn.Module):
        """The three largest; which they are, rounding may change."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 200)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores = self.layer(x)
            return scores.masked_fill(scores < scores.topk(3).values[..., -1:], -torch.inf)

    torch.manual_seed(0)
    model = Filtered().eval()
    guard = Guard(model, [arguments(torch.randn(16, 64))], torch.float32)
    assert guard.judge(Prepared(model, BF16, CPU).eager, BF16).refusal == ""

    def noise(x: torch.Tensor) -> torch.Tensor:
        found = model(x)
        at = found.argmax(-1, keepdim=True)
        return torch.randn_like(found).scatter(-1, at, found.gather(-1, at) + 9)

    assert guard.judge(noise, BF16).refusal != ""
    assert "finite" in guard.judge(lambda x: model(x).nan_to_num(neginf=0.0), Way()).refusal
