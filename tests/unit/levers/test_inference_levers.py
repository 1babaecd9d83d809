"""Levers for jobs that infer: the same numbers without gradients, nearly the same with rounded weights."""

import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flatout.levers.job import JobFacts  # noqa: E402
from flatout.levers.lever import Refused  # noqa: E402
from flatout.levers.no_gradients import NoGradients  # noqa: E402
from flatout.levers.quantized_weights import Fp8Weights, Int4Weights, Int8Weights  # noqa: E402
from flatout.levers.torchao import MISSING  # noqa: E402

nn = torch.nn
WITH = {"infers": True, "packages": {"torchao": "0.18"}, "linears": 3}


class Net(nn.Module):
    """With a layer that stands in two places."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 64)
        self.again = self.second
        self.head = nn.Linear(64, 8)

    def forward(self, x: Any) -> Any:
        return self.head(torch.relu(self.again(torch.relu(self.second(torch.relu(self.first(x)))))))


def scene(root: Any, *, infers: bool = True) -> Any:
    return SimpleNamespace(
        torch=torch, device=torch.device("cpu"), roots=lambda: [root], infers=infers, same_random=False
    )


def test_without_gradients_the_numbers_are_the_same() -> None:
    net, x = Net(), torch.randn(4, 32)
    call = NoGradients(scene(net), {}).around(net, net)
    out = call(x)
    assert not out.requires_grad
    assert torch.equal(out, net(x))


@pytest.mark.parametrize(
    ("habits", "words"),
    [
        ({"infers": False, "keeps_gradients": True}, "trains"),
        ({"infers": True, "keeps_gradients": False}, "keeps none"),
        ({"infers": True, "keeps_gradients": True}, ""),
    ],
)
def test_it_is_for_scripts_that_infer_and_keep_gradients(habits: dict[str, Any], words: str) -> None:
    found = NoGradients.check(JobFacts(habits=habits))
    assert words in found
    assert bool(found) == bool(words)


@pytest.mark.parametrize(
    ("lever", "facts", "words"),
    [
        (Int8Weights, {"habits": WITH}, ""),
        (Int8Weights, {"habits": {**WITH, "infers": False}}, "trains"),
        (Int8Weights, {"habits": {**WITH, "packages": {}}}, MISSING),
        (Int8Weights, {"habits": {**WITH, "linears": 0}}, "no linear"),
        (Int8Weights, {"habits": {**WITH, "compiles": True}}, "compiles itself"),
        (Int4Weights, {"habits": WITH}, "8.0"),
        (Int4Weights, {"habits": WITH, "device": "cuda:0", "capability": (8, 0)}, ""),
        (Fp8Weights, {"habits": WITH, "device": "cuda:0", "capability": (8, 0)}, "8.9"),
        (Fp8Weights, {"habits": WITH, "device": "cuda:0", "capability": (9, 0)}, ""),
    ],
)
def test_where_rounded_weights_are_refused(lever: Any, facts: dict[str, Any], words: str) -> None:
    found = lever.check(JobFacts(**facts))
    assert words in found
    assert bool(found) == bool(words)


def test_a_training_keeps_its_weights() -> None:
    with pytest.raises(Refused, match="trains"):
        Int8Weights(scene(Net(), infers=False), {}).apply()


@pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed")
@pytest.mark.filterwarnings("ignore")
def test_weights_are_rounded_and_put_back() -> None:
    net, x = Net().eval(), torch.randn(4, 32)
    before, layers, state = net(x), list(net.modules()), {k: v.clone() for k, v in net.state_dict().items()}
    lever = Int8Weights(scene(net), {})
    lever.apply()
    with torch.no_grad():
        apart = (net(x) - before).abs().max()
    assert 0 < apart < 0.05 * before.std()
    assert net.second is net.again
    assert type(net.head.weight) is not nn.Parameter
    lever.undo()
    assert list(net.modules()) == layers
    assert torch.equal(net(x), before)
    assert all(torch.equal(net.state_dict()[name], value) for name, value in state.items())
