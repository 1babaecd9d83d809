"""What is noted when there is no memory left."""

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flatout.inside.autopsy import AutopsyTap, held, owners  # noqa: E402
from flatout.inside.calls import Files  # noqa: E402
from flatout.records.autopsy import read_out_of_memory  # noqa: E402

MIB = 1 << 20
FILES = Files(torch)
TORCHS = (torch.nn.modules.module.__file__, 10, "_call_impl")


def block(size: int, state: str = "active_allocated", *frames: tuple[str, int, str]) -> dict[str, Any]:
    return {
        "size": size * MIB,
        "state": state,
        "frames": [{"filename": file, "line": number, "name": name} for file, number, name in frames],
    }


def test_who_holds_what_by_category_and_by_line() -> None:
    snapshot = {
        "segments": [
            {
                "address": 1000,
                "blocks": [
                    block(4),
                    block(8, "active_allocated", TORCHS, ("/home/me/model.py", 7, "forward")),
                    block(2, "inactive"),
                    block(8, "active_allocated", TORCHS, ("/home/me/model.py", 7, "forward")),
                ],
            },
            {"address": 1 << 40, "blocks": [block(6, "inactive"), block(1)]},
        ]
    }
    found = held(snapshot, {1000: "parameters", (1 << 40) + 6 * MIB: "optimizer"}, FILES)
    assert found["parts"] == {"parameters": 4 * MIB, "activations": 16 * MIB, "optimizer": MIB}
    assert (found["cached_bytes"], found["largest_cached_bytes"]) == (8 * MIB, 6 * MIB)
    assert found["holders"][0] == {
        "category": "activations",
        "where": "/home/me/model.py:7 in forward",
        "size_bytes": 16 * MIB,
        "count": 2,
    }


def test_the_calls_that_led_there_are_told_apart_and_bounded() -> None:
    layer, main = ("/home/me/model.py", 7, "forward"), ("/home/me/train.py", 3, "main")
    other = ("/home/me/train.py", 9, "evaluate")
    blocks = [block(1, "active_allocated", ("/home/me/many.py", line, "f")) for line in range(300)]
    blocks += [block(8, "active_allocated", TORCHS, layer, TORCHS, main) for _ in range(2)]
    blocks += [block(4, "active_allocated", layer, other), block(3, "active_allocated", TORCHS)]
    found = held({"segments": [{"address": 1000, "blocks": blocks}]}, {}, FILES)
    assert len(found["stacks"]) == 200
    assert found["stacks"][:3] == [
        {
            "category": "activations",
            "frames": ("/home/me/train.py:3 in main", "/home/me/model.py:7 in forward"),
            "size_bytes": 16 * MIB,
            "count": 2,
        },
        {
            "category": "activations",
            "frames": ("/home/me/train.py:9 in evaluate", "/home/me/model.py:7 in forward"),
            "size_bytes": 4 * MIB,
            "count": 1,
        },
        {"category": "activations", "frames": (), "size_bytes": 3 * MIB, "count": 1},
    ]
    # One line, whatever led to it.
    assert found["holders"][0]["where"] == "/home/me/model.py:7 in forward"
    assert found["holders"][0]["size_bytes"] == 20 * MIB
    deep = [block(1, "active_allocated", *[layer] * 500, main)]
    found = held({"segments": [{"address": 0, "blocks": deep}]}, {}, FILES)
    assert len(found["stacks"][0]["frames"]) == 48


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


def on_a_device(snapshot: Any, folder: Path) -> list[BaseException]:
    """What the allocator of a GPU that has no more tells the tap; what failed of it."""
    failed: list[BaseException] = []
    stats = {"allocated_bytes.all.current": 8 * MIB, "reserved_bytes.all.current": 10 * MIB}
    cuda = SimpleNamespace(
        memory=SimpleNamespace(_snapshot=lambda _device: snapshot), memory_stats=lambda _device: stats
    )
    session: Any = SimpleNamespace(
        torch=SimpleNamespace(cuda=cuda, __file__=torch.__file__),
        optimizers=list,
        roots=list,
        folder=lambda: folder,
        fail=lambda _tap, error: failed.append(error),
        in_backward=False,
        busy=True,
        updates=3,
    )
    AutopsyTap(session)._on_device(0, 4 * MIB, 100 * MIB, 2 * MIB)
    return failed


def test_a_gpu_that_has_no_more_leaves_a_note_and_torchs_own_snapshot(tmp_path: Path) -> None:
    asked = block(8, "active_allocated", ("/home/me/model.py", 7, "forward"))
    snapshot = {"segments": [{"address": 1000, "blocks": [asked, block(2, "inactive")]}], "device_traces": []}
    assert on_a_device(snapshot, tmp_path) == []
    noted = read_out_of_memory(tmp_path)
    assert noted is not None
    assert (noted.asked_bytes, noted.cached_bytes, noted.phase) == (4 * MIB, 2 * MIB, "forward")
    assert noted.stacks[0].frames == ("/home/me/model.py:7 in forward",)
    assert pickle.loads((tmp_path / "out-of-memory.pickle").read_bytes()) == snapshot


def test_a_snapshot_that_cannot_be_kept_costs_neither_the_note_nor_the_job(tmp_path: Path) -> None:
    snapshot = {"segments": [{"address": 1000, "blocks": [block(8)], "odd": lambda: None}]}
    [error] = on_a_device(snapshot, tmp_path)
    assert "local object" in str(error)
    assert read_out_of_memory(tmp_path) is not None
    assert not (tmp_path / "out-of-memory.pickle").exists()
