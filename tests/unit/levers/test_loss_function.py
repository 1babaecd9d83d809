"""Levers around torch's cross entropy: in and out in any order, and torch's own at the end."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flatout.levers import compile as compile_lever  # noqa: E402
from flatout.levers.bf16 import Bf16  # noqa: E402
from flatout.levers.compile import Compile  # noqa: E402
from flatout.levers.loss_function import LossFunction  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
F = torch.nn.functional
SCENE: Any = SimpleNamespace(torch=torch, note=lambda *_: None, device=torch.device("cpu"))


def noting(word: str, seen: list[str]) -> Any:
    def around(call: Any) -> Any:
        def noted(*args: Any, **kwargs: Any) -> Any:
            seen.append(word)
            return call(*args, **kwargs)

        return noted

    return around


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_in_and_out_in_any_order(order: tuple[str, ...]) -> None:
    real, place, seen = F.cross_entropy, LossFunction(torch), []
    layers = {"a": 10, "b": 20, "c": 30}
    for word in order:
        place.put(word, layers[word], noting(word, seen))
    x, y = torch.randn(3, 4), torch.tensor([0, 1, 2])
    assert F.cross_entropy(x, y) == real(x, y)
    assert seen == ["c", "b", "a"]
    for count, word in enumerate(order, 1):
        place.take(word)
        seen.clear()
        torch.nn.CrossEntropyLoss()(x, y)
        assert len(seen) == 3 - count
    assert F.cross_entropy is real


def test_who_looked_it_up_before_a_lever_came_on_goes_through_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    real, place, seen = F.cross_entropy, LossFunction(torch), []
    monkeypatch.setattr(F, "cross_entropy", real)  # to be put back
    x, y = torch.randn(3, 4), torch.tensor([0, 1, 2])
    place.stand_by()
    looked_up = F.cross_entropy
    assert looked_up(x, y) == real(x, y)
    place.put("a", 10, noting("a", seen))
    assert looked_up(x, y) == real(x, y)
    assert seen == ["a"]
    place.take("a")
    assert looked_up(x, y) == real(x, y)
    assert seen == ["a"]
    assert F.cross_entropy is looked_up


def test_a_model_that_computes_its_loss_is_compiled_once() -> None:
    real, lever = F.cross_entropy, Compile(SCENE, {})
    compiled = torch.compile(lambda x, y: F.cross_entropy(2 * x, y), backend="eager")
    x, y = torch.randn(3, 4), torch.tensor([0, 1, 2])
    stats = torch._dynamo.utils.counters["stats"]
    lever.apply()
    expected = compiled(x, y)
    before = stats["unique_graphs"]
    for _ in range(3):
        lever.undo()
        lever.apply()
        assert compiled(x, y) == expected
    assert stats["unique_graphs"] == before
    lever.undo()
    assert F.cross_entropy is real


def test_what_somebody_else_put_there_stays() -> None:
    real, place = F.cross_entropy, LossFunction(torch)
    place.put("a", 1, lambda call: call)
    F.cross_entropy = theirs = lambda *args: 7
    place.take("a")
    assert F.cross_entropy is theirs
    F.cross_entropy = real


def test_a_large_loss_is_compiled_and_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_lever, "_LARGE_LOSS", 100)
    real, lever = F.cross_entropy, Compile(SCENE, {})
    x = torch.randn(16, 50, requires_grad=True)
    y = torch.randint(50, (16,))
    y[3] = -100  # ignored
    expected = real(x, y, label_smoothing=0.1)
    [gradient] = torch.autograd.grad(expected, x)
    stats = torch._dynamo.utils.counters["stats"]
    before = stats["unique_graphs"]
    lever.apply()
    found = F.cross_entropy(x, y, label_smoothing=0.1)
    assert stats["unique_graphs"] == before + 1
    assert torch.allclose(found, expected, atol=1e-6)
    assert torch.allclose(torch.autograd.grad(found, x)[0], gradient, atol=1e-6)
    with torch.no_grad():  # evaluation as written
        F.cross_entropy(x, y)
    F.cross_entropy(torch.randn(2, 3, requires_grad=True), torch.tensor([0, 1]))  # small
    assert stats["unique_graphs"] == before + 1
    with pytest.raises(IndexError):  # an error of the script's own is the script's own
        F.cross_entropy(x, torch.full((16,), 50))
    lever.undo()
    assert F.cross_entropy is real


def test_bf16_and_the_compiler_leave_in_any_order() -> None:
    real = F.cross_entropy
    for first in (0, 1):
        levers: list[Any] = [Compile(SCENE, {}), Bf16(SCENE, {})]
        levers[0].apply()
        from flatout.levers.loss_function import loss_function

        loss_function(torch).put("bf16", 40, levers[1]._outputs._with_autocast)
        levers[first].undo()
        assert F.cross_entropy is not real
        levers[1 - first].undo()
        assert F.cross_entropy is real
