"""What recorded steps say of a job on a real GPU: kernels, the waterfall, waits with their lines, floors."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

ROOT = Path(__file__).parents[2]
SCRIPT = """
import time, torch
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(8))).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
x = torch.randn(4096, 2048, device="cuda")
while True:
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()  # waits here
    time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("job")
    (folder / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "flatout", "profile", "--json", "--seconds", "3", "train.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def part(profile: dict[str, Any], name: str) -> float:
    return sum(share["ms"] for share in profile["waterfall"] if share["part"] == name)


def test_every_instant_of_a_step_has_one_part(profile: dict[str, Any]) -> None:
    assert sum(share["share"] for share in profile["waterfall"]) == pytest.approx(1.0, abs=0.01)
    assert part(profile, "matmul") > 0


def test_a_wait_of_twenty_milliseconds_is_found_on_its_line(profile: dict[str, Any]) -> None:
    assert part(profile, "sync_stall") == pytest.approx(20.0, abs=1.0)
    first = profile["findings"][0]
    assert first["code"] == "F204"
    source = SCRIPT.splitlines()
    assert "# waits here" in source[first["where"][0]["line"] - 1]


def test_products_in_float32_are_seen_off_tensor_cores(profile: dict[str, Any]) -> None:
    assert profile["trace"]["tensor_core_share"] < 0.1
    assert {"F301", "F302"} & {finding["code"] for finding in profile["findings"]}


def test_no_step_is_faster_than_its_floors(profile: dict[str, Any]) -> None:
    floors = profile["floors"]
    assert 0 < floors["fused_ms"] <= floors["as_written_ms"] < profile["step_ms"]["p50"]


def test_memory_over_time_stays_below_the_peak(profile: dict[str, Any]) -> None:
    sizes = [point["allocated_bytes"] for point in profile["memory_timeline"]]
    assert sizes
    assert max(sizes) <= 1.05 * profile["memory"]["allocated_peak_bytes"]
