"""Functions and batches that go to another process."""

from collections import namedtuple
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from flatout.entry import imagining  # noqa: E402
from flatout.entry.importable import import_again  # noqa: E402

Batch = namedtuple("Batch", ["x", "more"])


@pytest.mark.parametrize("file", ["train.py", "train"])
def test_a_function_of_a_script_is_found_whatever_the_scripts_name_ends_in(tmp_path: Path, file: str) -> None:
    script = tmp_path / file
    script.write_text("def made():\n    return 7\nif __name__ == '__main__':\n    raise SystemExit\n")
    assert import_again(str(script), "made")() == 7


def test_named_tuples_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, _device: tensor + 1)
    moved = imagining._moved(Batch(torch.zeros(1), {"y": [torch.zeros(1)], "z": 3}))
    assert type(moved) is Batch
    assert (moved.x.item(), moved.more["y"][0].item(), moved.more["z"]) == (1.0, 1.0, 3)
