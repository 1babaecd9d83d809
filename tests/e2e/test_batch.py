"""`flatout batch`: the knee of throughput of an unmodified script."""

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import Run
from tests.e2e.jobs import QUICK_SGD

TRAINS = (
    QUICK_SGD
    + """
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
chosen = parser.parse_args()
data = torch.utils.data.TensorDataset(torch.randn(20000, 8), torch.randn(20000, 1))
model = torch.nn.Linear(8, 1)
optimizer = Sgd(model.parameters(), lr=0.01)
while True:
    for x, y in torch.utils.data.DataLoader(data, batch_size=chosen.batch_size):
        time.sleep(0.02)  # whatever the batch
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
"""
)


@pytest.mark.full
def test_the_knee_was_run_and_nothing_else_is_named(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS)
    done = flatout("batch", "--json", "--most", "32", "train.py")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["schema"] == "flatout.batch/1"
    assert found["was"] == 4
    assert found["best"] in [one["batch"] for one in found["sizes"] if one["outcome"] == "fits"]
    assert 16 <= found["best"] <= 32
    assert found["option"] == "--batch-size"
    assert "learning rate" in found["consequence"]
    assert f"batch {found['best']}:" in flatout("report", found["run"]).stdout


@pytest.mark.full
def test_a_batch_that_cannot_be_changed(flatout: Run, tmp_path: Path) -> None:
    fixed = TRAINS.replace(
        "torch.utils.data.DataLoader(data, batch_size=chosen.batch_size)", "[data[:4]] * 1000"
    )
    (tmp_path / "train.py").write_text(
        fixed.replace('parser.add_argument("--batch-size", type=int, default=4)', "")
    )
    done = flatout("batch", "train.py")
    assert done.returncode == 2
    assert "no way was found to change the batch" in done.stderr
