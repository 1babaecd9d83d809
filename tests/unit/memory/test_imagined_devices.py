"""What an unmodified script asks of its imagined GPU, and is told."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("torch")

MIB = 1 << 20
SCRIPT = """
import json
import sys
import warnings
from pathlib import Path

import torch

from flatout.memory.imagined.world import imagine

warnings.simplefilter("error")
ledger = imagine(torch, Path(sys.argv[1]))
said = {}


def taken():
    return sum(event[1] for event in ledger._events if len(event) == 3)


# Where things lie.
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(), torch.nn.Linear(64, 8))
said["before"] = str(model[0].weight.device)
model = model.cuda()
weight = next(model.parameters())
said["weight"] = [str(weight.device), weight.is_cuda, weight.is_cpu, weight.get_device()]
host = torch.randn(16, 64)
said["host"] = [str(host.device), host.is_cuda, host.is_cpu, host.get_device()]
x = host.to(weight.device)
said["batch"] = ledger.batch
before = taken()
mask = torch.zeros(1024, 1024, device=x.device)
said["mask"] = [taken() - before, str(mask.device), str((mask + 1).device), str(mask.cpu().device)]
before = taken()
# These make tensors of their own within functions that a mode sees from outside alone.
noise = torch.nn.functional.fractional_max_pool2d(torch.ones(2, 1, 64, 64, device="cuda"), 2, output_size=32)
said["within"] = [taken() > before, str(noise.device)]
same = x.to(x.device)
said["same"] = same.untyped_storage()._cdata == x.untyped_storage()._cdata

# A step with what reads devices on its way.
optimizer = torch.optim.AdamW(model.parameters(), fused=len(sys.argv) > 2)
scaler = torch.amp.GradScaler("cuda")
for _ in range(2):
    with torch.autocast("cuda", torch.bfloat16):
        out = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
        loss = out.float().pow(2).mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
recurrent = torch.nn.LSTM(8, 8).cuda()
recurrent(torch.randn(4, 2, 8, device="cuda"))[0].sum().backward()
said["updates"] = ledger._updates


# An update whose step is computed within it.
def whole_step():
    loss = model(x).square().mean()
    loss.backward()
    return loss


torch.optim.AdamW(model.parameters()).step(whole_step)
begins = max(number for number, event in enumerate(ledger._events) if event == [0])
places = list(ledger._places)
during = {places[event[2]][2] for event in ledger._events[begins:] if len(event) == 3}
said["in an update"] = [sorted(during), ledger._updates]

# What scripts ask of torch.cuda and torch.accelerator.
gpu = torch.cuda.get_device_properties(0)
said["properties"] = [gpu.major, gpu.total_memory > 1 << 30, gpu.multi_processor_count > 1]
free, total = torch.cuda.mem_get_info()
said["free"] = 0 < free <= total
said["texts"] = [torch.cuda.memory_summary(), torch.cuda.memory_stats()["allocated_bytes.all.peak"]]
said["use"] = torch.cuda.utilization()
x.record_stream(torch.cuda.current_stream())
generator = torch.Generator("cuda").manual_seed(1)
torch.randn(4, device="cuda", generator=generator)
torch.randperm(4, generator=torch.Generator())
torch.cuda.nvtx.range_push("a step")
torch.cuda.nvtx.range_pop()
with torch.cuda.nvtx.range("another"):
    pass
ledger.write()
said["grows"] = [json.loads((Path(sys.argv[1]) / "ledger.json").read_text())["expandable"]]
torch.cuda.memory._set_allocator_settings("expandable_segments:False")
ledger.write()
said["grows"].append(json.loads((Path(sys.argv[1]) / "ledger.json").read_text())["expandable"])
accelerator = torch.accelerator.current_accelerator()
said["accelerator"] = [torch.accelerator.is_available(), str(torch.zeros(1, device=accelerator).device)]
torch.accelerator.synchronize()
loader = torch.utils.data.DataLoader(host, batch_size=4, pin_memory=True)
said["pinned"] = str(next(iter(loader)).device)
try:
    sparse = torch.nn.Embedding(10, 4, sparse=True).cuda()
    sparse(torch.tensor([1], device="cuda")).sum().backward()
except NotImplementedError as refused:
    said["sparse"] = str(refused)
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("imagined")
    environment = {**os.environ, "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    words = [sys.executable, "-c", SCRIPT, str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_tensors_say_that_they_lie_on_the_gpu_they_were_put_on(said: dict[str, Any]) -> None:
    assert said["before"] == "cpu"
    assert said["weight"] == ["cuda:0", True, False, 0]
    assert said["host"] == ["cpu", False, True, -1]


def test_what_is_made_where_another_tensor_lies_is_counted(said: dict[str, Any]) -> None:
    assert said["batch"] == 16
    assert said["mask"] == [4 * MIB, "cuda:0", "cuda:0", "cpu"]
    assert said["within"] == [True, "cuda:0"]
    assert said["same"] is True


def test_a_script_that_asks_for_devices_all_the_way_trains(said: dict[str, Any]) -> None:
    assert said["updates"] == 2


def test_an_optimizer_takes_what_comes_after_the_step_that_it_has_computed(said: dict[str, Any]) -> None:
    during, updates = said["in an update"]
    assert updates == 3
    assert any("foreach" in operator for operator in during)
    assert not any("mm" in operator for operator in during)


def test_whether_segments_grow_is_what_the_environment_or_the_script_says(said: dict[str, Any]) -> None:
    assert said["grows"] == [True, False]


def test_sparse_gradients_are_refused_with_what_to_do(said: dict[str, Any]) -> None:
    assert "sparse=False" in said["sparse"]


def test_common_questions_have_answers(said: dict[str, Any]) -> None:
    assert said["properties"] == [9, True, True]
    assert said["free"] is True
    assert said["texts"] == ["", 0]
    assert said["use"] == 0
    assert said["accelerator"] == [True, "cuda:0"]
    assert said["pinned"] == "cpu"
