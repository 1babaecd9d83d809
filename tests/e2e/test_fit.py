"""`flatout fit`: unmodified scripts on a GPU that is only imagined."""

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from flatout.limits.measure import torch_version
from flatout.limits.store import LimitsStore
from flatout.records.device import Device
from flatout.records.fit import Fit
from flatout.records.link import RanksLink
from flatout.report.fit import draw_fit
from tests.e2e.conftest import Run
from tests.fakes.nvml_with_limits import NvmlWithLimits
from tests.unit.limits.test_store import some_limits

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
    assert parts["workspace"] == (32 + 32 + 1) * MIB  # both threads, and with a bias
    # At least the batch, and what the two layers give.
    assert found["peak_bytes"] >= 3 * PARAMETERS + 64 * 4 * (4096 + 4096 + 1024)
    assert found["peak_bytes"] == sum(parts.values()) - parts["context"]
    assert found["peak_bytes"] <= found["reserved_bytes"]
    assert found["where"].endswith("in <module>")
    assert {option["gpu"]: option["fits"] for option in found["options"]}["t4"] is True
    assert not (tmp_path / "model.pt").exists()


@pytest.mark.full
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


@pytest.mark.full
def test_what_depends_on_values_is_named(flatout: Run, tmp_path: Path) -> None:
    found = fitted(flatout, tmp_path, forward="keep = x[:, 0] > 0; loss = model(x[keep]).square().mean()")
    assert any("train.py:" in note and "counted at its largest" in note for note in found["notes"])


@pytest.mark.full
def test_what_is_compiled_is_counted_as_written(flatout: Run, tmp_path: Path) -> None:
    found = fitted(flatout, tmp_path, before="model = torch.compile(model)")
    assert any("train.py:" in note and "compiled" in note for note in found["notes"])
    assert found["parts"]["parameters"] == PARAMETERS


@pytest.mark.full
def test_a_script_that_uses_no_gpu(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS.format(**PLAIN).replace('"cuda" if', '"cpu" if'))
    done = flatout("fit", "--json", "train.py")
    nothing = json.loads(done.stdout)
    assert (nothing["peak_bytes"], done.returncode) == (0, 1)
    assert "nothing on the GPU" in nothing["notes"][0]
    drawn = flatout("fit", "train.py").stdout
    assert drawn.startswith("the script put nothing on the GPU")
    assert "fits" not in drawn


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


BLOCKS = """
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
chosen = parser.parse_args()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(256, 2048), nn.Linear(2048, 256)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


model = nn.Sequential(nn.Linear(256, 256), nn.Sequential(*(Block() for _ in range(8)))).cuda()
optimizer = torch.optim.AdamW(model.parameters())
while True:
    loss = model(torch.randn(chosen.batch_size, 128, 256, device="cuda")).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.full
def test_what_does_not_fit_is_told_how_it_could(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BLOCKS)
    done = flatout("fit", "--json", "--max-memory", "1500MiB", "train.py")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    [option] = found["options"]
    assert option["fits"] is False
    fitting = [one for one in found["strategies"] if one["fits"]]
    assert any("blocks computed again" in one["strategy"] for one in fitting)
    assert all(one["is_tight"] or one["peak_bytes"] <= 1500 * MIB for one in fitting)
    assert found["least_bytes"] < option["peak_bytes"]
    assert found["holders"][0]["where"].startswith("train.py:")
    console = Console(record=True, width=100, file=io.StringIO())
    draw_fit(msgspec.convert({name: found[name] for name in found if name != "schema"}, Fit), console)
    drawn = console.export_text()
    assert "what makes it fit into" in drawn
    assert "activations, by line" in drawn


@pytest.mark.full
def test_batch_sizes_by_the_scripts_own_option(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BLOCKS)
    done = flatout("fit", "--json", "--batch", "8,32", "train.py", "--batch-size", "64")
    assert done.returncode == 0, done.stderr
    small, large = json.loads(done.stdout)["fits"]
    assert small["parts"]["activations"] * 3 < large["parts"]["activations"]


def test_batch_sizes_of_a_script_without_an_option(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS.format(**PLAIN))
    done = flatout("fit", "--batch", "8", "train.py")
    assert done.returncode == 2
    assert "no option for its batch size" in done.stderr
    assert flatout("fit", "--batch", "8,x", "train.py").returncode == 2


@pytest.mark.full
def test_a_language_model_by_its_configuration(flatout: Run, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 1000,
    }
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "config.json").write_text(json.dumps(config))
    asked = ("fit", "--json", "--hf", "config.json", "--context", "128", "--gpu", "t4")
    done = flatout(*asked, cwd=tmp_path / "small")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["models"]
    assert {row["model"] for row in rows} == {"small"}
    training, lora, inference = (row["fit"] for row in rows)
    assert training["parts"]["optimizer"] == pytest.approx(2 * training["parts"]["parameters"], rel=0.01)
    assert 0 < lora["parts"]["optimizer"] < training["parts"]["optimizer"]
    assert lora["parts"]["parameters"] > inference["parts"]["parameters"] > 0
    assert flatout("fit", "--hf", "nothing").returncode == 2


def test_what_loading_takes(flatout: Run, tmp_path: Path) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}}).encode()
    (tmp_path / "m.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))
    done = flatout("fit", "--json", "--load", "m.safetensors", "--gpu", "t4")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema"] == "flatout.load/1"
    assert flatout("fit").returncode == 2
    assert flatout("fit", "--load", "m.safetensors", "train.py").returncode == 2


@pytest.mark.full
def test_a_link_measured_on_this_machine_is_reckoned_with_and_said(flatout: Run, tmp_path: Path) -> None:
    NvmlWithLimits(tmp_path / "nvml.json", gpus=2)
    seen = {"PYTHONPATH": str(ROOT / "tests/fakes/as_pynvml"), "FAKE_NVML_FILE": str(tmp_path / "nvml.json")}
    [first, _] = json.loads(flatout("doctor", "--json", **seen).stdout)["devices"][:2]
    device = msgspec.convert(first, Device)
    members = ("GPU 0", "GPU 1")
    link = RanksLink(backend="nccl", ranks=2, members=members, bus_bytes_per_s=1.25e11, took_s=1.0)
    kept = dataclasses.replace(some_limits(torch_version()), link=link)
    LimitsStore(tmp_path / "cache").save(device, kept)
    (tmp_path / "train.py").write_text(TRAINS.format(**PLAIN))
    asked = ("fit", "--json", "--gpu", "h200-sxm,t4", "--gpus", "2", "train.py")
    options = json.loads(flatout(*asked, **seen).stdout)["spread"]
    sources = {option["gpu"]: (option["link_bytes_per_s"], option["link_source"]) for option in options}
    assert sources["h200-sxm"] == (1.25e11, "measured between 2 on this machine, 2026-11-15")
    assert sources["t4"][1].endswith("rated")
