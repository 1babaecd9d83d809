"""The examples with levers applied by hand, as an expert would write them: what tuning is held against.

Loads the example's own model and data, and writes the loop anew: autocast around model and loss, the fused
optimizer, torch.compile. Prints samples a second as JSON.

    python -m benchmarks.by_hand examples/gpt.py --levers tf32,bf16,fused,compile=reduce-overhead --seconds 20
"""

import argparse
import contextlib
import importlib.util
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader

SIZES = {
    "124m": {"vocabulary": 50257, "length": 1024, "width": 768, "heads": 12, "layers": 12},
    "1.3b": {"vocabulary": 50257, "length": 2048, "width": 2048, "heads": 16, "layers": 24},
    "tiny": {"vocabulary": 1000, "length": 64, "width": 64, "heads": 4, "layers": 2},
}


def load(path: str) -> Any:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fused_attention(self: Any, x: torch.Tensor) -> torch.Tensor:
    """What examples/gpt.py writes out, as one call."""
    batch, length, width = x.shape
    q, k, v = self.qkv(x).split(width, dim=2)
    q, k, v = (one.view(batch, length, self.heads, -1).transpose(1, 2) for one in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    out: torch.Tensor = self.out(y.transpose(1, 2).contiguous().view(batch, length, width))
    return out


def batches(loader: "DataLoader[Any]") -> Iterator[Any]:
    """For ever."""
    while True:
        yield from loader


def main() -> None:
    """Train by hand, and say how fast that was."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("script")
    parser.add_argument("--size", choices=SIZES, default="124m")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--levers", default="", help="of tf32, bf16, fused, attention, compile=MODE")
    parser.add_argument("--seconds", type=float, default=15.0)
    chosen = parser.parse_args()
    levers = dict(word.partition("=")[::2] for word in chosen.levers.split(",") if word)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    if "tf32" in levers:
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
    example, size = load(chosen.script), SIZES[chosen.size]
    data = example.RandomText(chosen.batch * 64, size["length"], size["vocabulary"])
    if "attention" in levers:
        example.Attention.forward = fused_attention
    model = example.GPT(**size).to(device)
    fused = {"fused": True} if "fused" in levers else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, **fused)
    step_model = torch.compile(model, mode=levers["compile"] or None) if "compile" in levers else model
    autocast = torch.autocast(device, torch.bfloat16) if "bf16" in levers else contextlib.nullcontext()
    times: list[float] = []
    began = None
    source = batches(DataLoader(data, batch_size=chosen.batch, shuffle=True))
    last = time.perf_counter()
    for number, (from_inputs, from_targets) in enumerate(source):
        inputs, targets = from_inputs.to(device), from_targets.to(device)
        with autocast:
            logits = step_model(inputs)
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        now = time.perf_counter()
        if number >= 10:  # compiled, and warm
            began = began or last
            times.append(now - last)
        last = now
        if began is not None and now - began > chosen.seconds:
            break
    # The mean, as `flatout run` counts it: what comes around now and then, a new epoch's loader, is in both.
    found = {
        "step_ms": 1000 * statistics.median(times),
        "samples_per_s": chosen.batch / statistics.fmean(times),
        "steps": len(times),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
