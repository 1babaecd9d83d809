"""`flatout fit`: unmodified scripts on a GPU that is only imagined."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Run

ROOT = Path(__file__).parents[2]
MIB = 1 << 20

TRAINS = """
import torch
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024))
model = model.to(device)
optimizer = torch.optim.{optimizer}(model.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(256, 4096), torch.randint(0, 1024, (256,)))
{before}
for epoch in range(100):
    for x, y in DataLoader(data, batch_size=64, num_workers={workers}):
        x, y = x.{move}, y.{move}
        optimizer.zero_grad()
        {forward}
        {backward}
        if torch.isnan(loss) or loss.item() > 1e6:
            raise SystemExit("it diverges")
    print(f"loss {{loss:.3f}}")
    torch.save(model.state_dict(), "model.pt")
"""
PLAIN = {
    "optimizer": "SGD",
    "before": "",
    "workers": 0,
    "move": "to(device)",
    "forward": "loss = torch.nn.functional.cross_entropy(model(x), y)",
    "backward": "loss.backward(); optimizer.step()",
}
PARAMETERS = 4 * (4096 * 4096 + 4096 + 4096 * 1024 + 1024)


def fitted(flatout: Run, folder: Path, **changes: Any) -> dict[str, Any]:
    (folder / "train.py").write_text(TRAINS.format(**{**PLAIN, **changes}))
    done = flatout("fit", "--json", "train.py")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_what_a_training_step_holds(flatout: Run, tmp_path: Path) -> None:
    found = fitted(flatout, tmp_path, optimizer="AdamW")
    parts = found["parts"]
    assert found["schema"] == "flatout.fit/1"
    assert found["updates"] >= 3
    assert parts["parameters"] == pytest.approx(PARAMETERS, rel=1e-4)
    assert parts["gradients"] <= PARAMETERS * 1.0001
    assert parts["optimizer"] == pytest.approx(2 * PARAMETERS, rel=1e-4)
    assert parts["workspace"] == 32 * MIB
    # At least the batch, and what the two layers give.
    assert found["peak_bytes"] >= 3 * PARAMETERS + 64 * 4 * (4096 + 4096 + 1024)
    assert found["peak_bytes"] == sum(parts.values()) - parts["context"]
    assert found["peak_bytes"] <= found["reserved_bytes"]
    assert found["where"].endswith("in <module>")
    assert {option["gpu"]: option["fits"] for option in found["options"]}["t4"] is True
    assert not (tmp_path / "model.pt").exists()


def test_mixed_precision_with_loss_scaling(flatout: Run, tmp_path: Path) -> None:
    found = fitted(
        flatout,
        tmp_path,
        before="scaler = torch.amp.GradScaler('cuda')",
        move="cuda(non_blocking=True)",
        workers=2,
        forward=(
            "with torch.autocast('cuda', dtype=torch.float16):\n"
            "            out = model(x); assert out.dtype is torch.float16\n"
            "            loss = torch.nn.functional.cross_entropy(out, y); assert loss.dtype is torch.float32"
        ),
        backward="scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()",
    )
    assert found["updates"] >= 3
    assert found["parts"]["parameters"] == pytest.approx(PARAMETERS, rel=1e-4)


def test_what_depends_on_values_is_named(flatout: Run, tmp_path: Path) -> None:
    found = fitted(flatout, tmp_path, forward="keep = x[:, 0] > 0; loss = model(x[keep]).square().mean()")
    assert any("train.py:" in note and "counted at its largest" in note for note in found["notes"])


def test_a_script_that_uses_no_gpu(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS.format(**PLAIN).replace('"cuda" if', '"cpu" if'))
    nothing = json.loads(flatout("fit", "--json", "train.py").stdout)
    assert nothing["peak_bytes"] == 0
    assert "nothing on the GPU" in nothing["notes"][0]


def test_a_script_that_cannot_be_imagined_is_told_so(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nraise ValueError('no such file: weights.bin')\n")
    done = flatout("fit", "train.py")
    assert done.returncode == 4
    assert "no such file: weights.bin" in done.stderr
    done = flatout("fit", "--gpu", "h1000", "train.py")
    assert done.returncode == 2
    assert "h1000" in done.stderr


def test_as_much_as_was_measured_on_an_h200(flatout: Run) -> None:
    """The example's own peak there, as benchmarks/results has it."""
    result = ROOT / "benchmarks/results/2026-11-15-nvidia-h200-tuning-gpt-124m.json"
    measured = json.loads(result.read_text())["baseline"]["peak_bytes"]
    found = json.loads(flatout("fit", "--json", str(ROOT / "examples" / "gpt.py")).stdout)
    assert found["reserved_bytes"] == pytest.approx(measured, rel=0.005)
