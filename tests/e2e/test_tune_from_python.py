"""`flatout.tune(build)` in a script, and the plan applied there."""

from pathlib import Path

import pytest

from tests.e2e.jobs import place_in

pytest.importorskip("torch")

SCRIPT = """
import torch, flatout
from torch import nn
from torch.utils.data import DataLoader

def build():
    torch.set_num_threads(1)
    torch.autograd.set_detect_anomaly(True)
    layers = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(60)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(torch.randn(4096, 4), batch_size=8)
    return model, optimizer, loader, lambda model, batch: model(batch).mean()

if __name__ == "__main__":
    said = []
    found = flatout.tune(
        build, budget_s=30, only=["debug-modes"], on_progress=lambda text, done, total: said.append(text)
    )
    assert said
    print(found.speedup > 1.1, found.guard.verdict, found.plan)
    model, optimizer, loader, _ = build()
    applied = flatout.apply(found.plan, model, optimizer, loader)
    model(torch.ones(1, 4)).sum().backward()
    print(applied.levers, torch.is_anomaly_enabled())
"""


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_function_is_tuned_and_its_plan_applied(tmp_path: Path) -> None:
    with place_in(tmp_path) as place:
        place.script(SCRIPT)
        done = place.bare("train.py")
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == ["True same flatout.toml", "('debug-modes',) False"]
        assert {path.name for path in place.work.iterdir()} == {"flatout.toml", "train.py", ".flatout"}
