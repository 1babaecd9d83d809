"""A real GPU as metrics, while a real process works on it."""

import json
from pathlib import Path

from tests.detached import Detached
from tests.e2e.conftest import Run, flatout

__all__ = ["flatout"]  # the fixture

WORKS = """
import torch
x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
y = x @ x
torch.cuda.synchronize()
note("main")
while True:
    for _ in range(50):
        torch.mm(x, x, out=y)
    torch.cuda.synchronize()
"""


def test_a_gpu_at_work_is_told_with_plausible_values(flatout: Run, tmp_path: Path) -> None:
    job = Detached.python(tmp_path / "a", WORKS)
    try:
        job.noted("main")
        done = flatout("export", "--once", "--json", "--dcgm-names")
    finally:
        job.end()
    assert done.returncode == 0, done.stderr
    values = {
        sample["name"]: sample["value"]
        for metric in json.loads(done.stdout)["metrics"]
        for sample in metric["samples"]
        if sample["labels"].get("gpu") == "0"
    }
    assert values["flatout_device_up"] == 1
    assert values["flatout_device_kernel_running_ratio"] > 0.5
    assert 10 < values["flatout_device_power_watts"] < 2000
    assert 10 < values["flatout_device_temperature_celsius"] < 110
    assert 0 < values["flatout_device_memory_used_bytes"] < values["flatout_device_memory_total_bytes"]
    assert values["flatout_device_processes"] >= 1
    assert values["DCGM_FI_DEV_GPU_UTIL"] > 50
    assert values["flatout_device_sample_age_seconds"] < 10
