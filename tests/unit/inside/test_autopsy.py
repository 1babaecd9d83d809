"""What is noted when there is no memory left."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flatout.inside.autopsy import held, owners  # noqa: E402

MIB = 1 << 20


def block(size: int, state: str = "active_allocated", *frames: tuple[str, int, str]) -> dict[str, Any]:
    return {
        "size": size * MIB,
        "state": state,
        "frames": [{"filename": file, "line": number, "name": name} for file, number, name in frames],
    }


def test_who_holds_what_by_category_and_by_line() -> None:
    library = ("/x/site-packages/torch/nn/linear.py", 10, "forward")
    snapshot = {
        "segments": [
            {
                "address": 1000,
                "blocks": [
                    block(4),
                    block(8, "active_allocated", library, ("/home/me/model.py", 7, "forward")),
                    block(2, "inactive"),
                    block(8, "active_allocated", library, ("/home/me/model.py", 7, "forward")),
                ],
            },
            {"address": 1 << 40, "blocks": [block(6, "inactive"), block(1)]},
        ]
    }
    found = held(snapshot, {1000: "parameters", (1 << 40) + 6 * MIB: "optimizer"})
    assert found["parts"] == {"parameters": 4 * MIB, "activations": 16 * MIB, "optimizer": MIB}
    assert (found["cached_bytes"], found["largest_cached_bytes"]) == (8 * MIB, 6 * MIB)
    assert found["holders"][0] == {
        "category": "activations",
        "where": "/home/me/model.py:7 in forward",
        "size_bytes": 16 * MIB,
        "count": 2,
    }


def test_what_is_no_activation_is_known_by_its_address() -> None:
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    assert set(owners([], [model]).values()) == {"parameters"}
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    found = owners([optimizer], [model])
    assert found[model.weight.untyped_storage().data_ptr()] == "parameters"
    assert found[model.weight.grad.untyped_storage().data_ptr()] == "gradients"
    assert sum(name == "optimizer" for name in found.values()) >= 4
