"""The model's output stays in bf16 only where the source shows that nothing but a cross entropy gets it."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flatout.inside.tap import unseen  # noqa: E402
from flatout.levers.bf16 import Bf16  # noqa: E402

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.functional import cross_entropy

criterion = nn.CrossEntropyLoss()

def note(value):
    seen.append(value.dtype)
    return value

seen = []
"""
ALONE = {
    "a function of torch": "out = model(x)\n    loss = F.cross_entropy(out, y)",
    "its full name": "out = model(x)\n    loss = torch.nn.functional.cross_entropy(out, y)",
    "a loss of the script's": "out = model(x)\n    loss = criterion(out, y)",
    "views": "out = model(x)\n    loss = F.cross_entropy(out.view(-1, out.size(-1)), y)",
    "slices": "out = model(x)[:, :]\n    out = out.reshape(*out.shape)\n    loss = criterion(input=out, target=y)",  # noqa: E501
    "at once": "loss = criterion(model(x), y)",
}
ELSEWHERE = {
    "a metric": "out = model(x)\n    loss = criterion(out, y)\n    right = out.argmax(1)",
    "a print now and then": "out = model(x)\n    loss = criterion(out, y)\n    if seen:\n        print(out)",
    "a function of the script's": "out = note(model(x))\n    loss = criterion(out, y)",
    "a function that was imported by name": "loss = cross_entropy(model(x), y)",
    "weights instead": "out = model(x)\n    loss = F.cross_entropy(torch.ones(4, 3), y, weight=out[0])",
    "arithmetic": "loss = F.cross_entropy(model(x) / 2, y)",
    "returned": "out = model(x)\n    loss = criterion(out, y)\n    return loss, out",
    "a list": "out = [model(x)]\n    loss = criterion(out[0], y)",
    "all names": "out = model(x)\n    loss = criterion(out, y)\n    locals()",
    "added to": "out = model(x)\n    out += 1\n    loss = criterion(out, y)",
    "written to": "out = model(x)\n    out[0] = 0\n    loss = criterion(out, y)",
}


def model_with(lever: Bf16) -> Any:
    """A model with the lever around its call, as a seat puts it there."""
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 3)
    call = lever.around(model, model._call_impl)

    def seat(x: Any) -> Any:
        result = call(x)
        model.returned = result.dtype
        return result

    model._compiled_call_impl = unseen(seat)
    return model


@pytest.fixture
def steps(tmp_path: Path) -> Any:
    def make(body: str) -> Any:
        path = tmp_path / "script.py"
        path.write_text(f"{HEAD}\ndef step(model, x, y):\n    {body}\n    return loss\n")
        spec = importlib.util.spec_from_file_location("script", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        lever = Bf16(SimpleNamespace(torch=torch, device=torch.device("cpu")), {})  # type: ignore[arg-type]
        return module, model_with(lever), lever

    return make


@pytest.mark.parametrize("body", ALONE.values(), ids=ALONE.keys())
def test_where_it_goes_into_the_loss_alone_it_stays_as_it_is(body: str, steps: Any) -> None:
    script, model, lever = steps(body)
    real, x, y = torch.nn.functional.cross_entropy, torch.randn(4, 5), torch.tensor([0, 1, 2, 0])
    loss = script.step(model, x, y)
    assert model.returned == torch.bfloat16
    assert loss.dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = real(model.forward(x), y)
    assert loss.item() == expected.item()  # as an expert would have written it
    lever.undo()
    assert torch.nn.functional.cross_entropy is real


@pytest.mark.parametrize("body", ELSEWHERE.values(), ids=ELSEWHERE.keys())
def test_wherever_else_it_goes_it_comes_in_float32(body: str, steps: Any) -> None:
    script, model, _ = steps(body)
    real = torch.nn.functional.cross_entropy
    with torch.no_grad():
        script.step(model, torch.randn(4, 5), torch.tensor([0, 1, 2, 0]))
    assert model.returned == torch.float32
    assert torch.nn.functional.cross_entropy is real


def test_a_loss_that_was_replaced_is_seen(steps: Any) -> None:
    script, model, lever = steps(ALONE["a loss of the script's"])
    x, y = torch.randn(4, 5), torch.tensor([0, 1, 2, 0])
    script.step(model, x, y)
    assert model.returned == torch.bfloat16
    script.criterion = lambda out, target: out.sum()
    assert script.step(model, x, y).dtype == torch.float32
    assert model.returned == torch.float32
    lever.undo()


def test_a_script_without_functions(steps: Any, tmp_path: Path) -> None:
    _, model, lever = steps(ALONE["at once"])
    path = tmp_path / "flat.py"
    path.write_text("out = model(x)\nloss = F.cross_entropy(out, y)\n")
    names = {"model": model, "x": torch.randn(4, 5), "y": torch.tensor([0, 1, 2, 0])}
    names |= {"F": torch.nn.functional, "__file__": str(path), "__name__": "__main__"}
    exec(compile(path.read_text(), str(path), "exec"), names)
    assert model.returned == torch.bfloat16
    lever.undo()
    path.write_text("out = model(x)\nloss = F.cross_entropy(out, y)\ndef later():\n    return out.tolist()\n")
    path = path.rename(tmp_path / "other.py")
    exec(compile(path.read_text(), str(path), "exec"), names)
    assert model.returned == torch.float32


def test_without_source_it_comes_in_float32(steps: Any) -> None:
    _, model, _ = steps(ALONE["at once"])
    names = {
        "model": model,
        "x": torch.randn(4, 5),
        "F": torch.nn.functional,
        "y": torch.tensor([0, 1, 2, 0]),
    }
    exec(compile("loss = F.cross_entropy(model(x), y)", "gone.py", "exec"), names)
    assert model.returned == torch.float32
