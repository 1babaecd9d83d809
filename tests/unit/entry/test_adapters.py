"""Adapters of `flatout fit --hf`: beside projections, whatever a model calls them."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flatout.entry.hugging_face_job import _adapt  # noqa: E402

nn = torch.nn


class Conv1D(nn.Module):
    """As GPT-2 has it: the weight lies the other way round."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs))

    def forward(self, x: Any) -> Any:
        return x @ self.weight


def block(**layers: Any) -> Any:
    made = nn.Module()
    for name, layer in layers.items():
        made.add_module(name, layer)
    return made


class Model(nn.Module):
    def __init__(self, **layers: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            block(**{name: make() for name, make in layers.items()}) for _ in range(2)
        )
        self.lm_head = nn.Linear(8, 4)


def adapted(model: Any) -> set[str]:
    _adapt(torch, model)
    assert not any(one.requires_grad for name, one in model.named_parameters() if ".layer." in name)
    return {
        name.removesuffix(".down.weight") for name, _ in model.named_parameters() if "down.weight" in name
    }


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ({"q_proj": lambda: nn.Linear(8, 8), "fc1": lambda: nn.Linear(8, 32)}, {"q_proj"}),
        (
            {"query_key_value": lambda: nn.Linear(8, 24), "dense": lambda: nn.Linear(8, 8)},
            {"query_key_value", "dense"},
        ),
        ({"c_attn": lambda: Conv1D(24, 8), "c_proj": lambda: Conv1D(8, 8)}, {"c_attn", "c_proj"}),
    ],
    ids=["called projections", "GPT-NeoX", "GPT-2"],
)
def test_projections_are_found(layers: dict[str, Any], expected: set[str]) -> None:
    model = Model(**layers)
    assert adapted(model) == {f"layers.{number}.{name}" for number in range(2) for name in expected}
    first = getattr(model.layers[0], min(expected))
    outputs = first.layer.weight.shape[1 if isinstance(first.layer, Conv1D) else 0]
    assert first(torch.randn(3, 8)).shape == (3, outputs)
    assert first.weight is first.layer.weight


def test_a_model_without_any_says_so() -> None:
    with pytest.raises(SystemExit, match="no adapters for this model"):
        _adapt(torch, Model(norm=lambda: nn.LayerNorm(8), other=lambda: nn.LayerNorm(8)))
