"""What `flatout fit` leaves to look at: a page with the calls that hold memory, a file for torch's viewer."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.cuda import _memory_viz as torchs  # noqa: E402

from tests.e2e.conftest import Run  # noqa: E402
from tests.pages import parsed  # noqa: E402

MIB = 1 << 20
SCRIPT = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(512, 2048), torch.nn.Linear(2048, 512)

    def forward(self, x):
        for _ in range(4):
            x = self.block(x)
        return x

    def block(self, x):
        return self.down(torch.relu(self.up(x)))  # held


def main():
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    while True:
        loss = model(torch.randn(1024, 512, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
"""
PARSES = """
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
"""
HELD = 1 + next(number for number, text in enumerate(SCRIPT.splitlines()) if text.endswith("# held"))


def test_a_page_and_a_snapshot_of_one_job(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = flatout("fit", "--snapshot", "memory.pickle", "train.py")
    assert done.returncode == 0, done.stderr
    [page] = (tmp_path / ".flatout" / "runs").glob("*/report.html")
    assert f"the picture: {page.relative_to(tmp_path)}" in done.stderr
    assert "for pytorch.org/memory_viz: memory.pickle" in done.stderr

    fit = json.loads((page.parent / "fit.json").read_text())
    assert fit["report"] == str(page.relative_to(tmp_path))
    assert len(fit["update_events"]) == fit["updates"]
    calls = next(one["frames"] for one in fit["stacks"] if one["operator"] == "relu")
    assert [call.partition(" in ")[2] for call in calls] == [
        "<module>",
        "main",
        "Model.forward",
        "Model.block",
    ]
    assert calls[-1] == f"train.py:{HELD} in Model.block"
    held = sum(one["size_bytes"] for one in fit["stacks"])
    assert held == pytest.approx(fit["peak_bytes"], abs=4 * MIB)
    found = parsed(page.read_text())
    assert any(text.startswith(f"train.py:{HELD} in Model.block: ") for text in found.texts)

    snapshot: dict[str, Any] = pickle.loads((tmp_path / "memory.pickle").read_bytes())
    assert sum(segment["allocated_size"] for segment in snapshot["segments"]) == fit["peak_bytes"]
    assert "Model.block" in torchs.memory(snapshot, format_flamegraph=lambda lines: lines)
    torchs.segsum(snapshot)


@pytest.mark.full
def test_several_sizes_have_a_page_each(flatout: Run, tmp_path: Path) -> None:
    script = SCRIPT.replace("randn(1024,", "randn(parser.parse_args().batch_size,")
    (tmp_path / "train.py").write_text(PARSES + script)
    done = flatout("fit", "--batch", "8,16", "train.py")
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / ".flatout" / "runs").glob("*/report.html"))) == 2
    assert "the picture of batch 8: " in done.stderr
    assert "the picture of batch 16: " in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--snapshot", "m.pickle", "--batch", "8,16", "train.py"), "one batch size"),
        (("--snapshot", "m.pickle", "--load", "x.safetensors"), "one script"),
        (("--snapshot", "nowhere/m.pickle", "train.py"), "no folder 'nowhere'"),
        (("--gpu", "h2000", "train.py"), "h2000"),
    ],
)
def test_mistakes_are_told_before_anything_runs(
    flatout: Run, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    done = flatout("fit", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / ".flatout").exists()
