"""Measures itself with torch's own profiler, for two steps of ten."""

import os

os.environ["KINETO_LOG_LEVEL"] = "99"  # its log lines carry the time of day

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

torch.manual_seed(19)
model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)


def show(prof):
    averages = {row.key: row.count for row in prof.key_averages()}
    print(
        "events", len(prof.events()) > 0, "of mine", averages["my forward"], "addmm", averages["aten::addmm"]
    )


plan = schedule(wait=2, warmup=1, active=2, repeat=1)
with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=show) as prof:
    for _ in range(10):
        x = torch.randn(12, 16)
        with record_function("my forward"):
            loss = model(x).logsumexp(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        prof.step()
        print("loss", loss.item().hex())
