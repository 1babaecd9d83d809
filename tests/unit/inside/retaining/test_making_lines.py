"""Which line asked for a tensor's memory, as torch's allocator remembers it on a GPU."""

import types
from typing import Any

from flatout.inside.retaining.making_lines import lines_that_made


def tensor(address: int) -> Any:
    storage = types.SimpleNamespace(data_ptr=lambda: address)
    return types.SimpleNamespace(is_cuda=True, untyped_storage=lambda: storage)


def torch_with(*, history: bool) -> Any:
    """As torch answers on a GPU, with frames where a history is kept."""
    inner = {"filename": "/x/site-packages/torch/nn/linear.py", "line": 10, "name": "forward"}
    outer = {"filename": "/home/me/train.py", "line": 7, "name": "step"}
    blocks = [{"size": 512, "frames": []}, {"size": 512, "frames": [inner, outer] if history else []}]
    return types.SimpleNamespace(
        _C=types.SimpleNamespace(_cuda_isHistoryEnabled=lambda: history),
        cuda=types.SimpleNamespace(memory_snapshot=lambda: [{"address": 4096, "blocks": blocks}]),
    )


def test_the_innermost_line_of_the_users_own() -> None:
    known, unknown = tensor(4096 + 512), tensor(1 << 30)
    assert lines_that_made(torch_with(history=True), [known, unknown]) == {
        id(known): "/home/me/train.py:7 in step"
    }


def test_without_a_history_there_are_none() -> None:
    assert lines_that_made(torch_with(history=False), [tensor(4096)]) == {}
    assert lines_that_made(types.SimpleNamespace(_C=types.SimpleNamespace()), [tensor(4096)]) == {}
    assert lines_that_made(torch_with(history=True), []) == {}
