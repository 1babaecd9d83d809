"""What readiness for an autopsy costs: a GPT with and without stacks kept by torch's allocator, by turns.

python -m benchmarks.autopsy_cost [--out FOLDER]        # on the GPU
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.machine import write

_BLOCKS, _STEPS, _TURNS = 12, 20, 8


def step_of(width: int, tokens: int) -> Any:
    """A training step whose host has much to do: many small tensors."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, _BLOCKS, enable_nested_tensor=False).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(4, tokens, width, device="cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def timed(step: Any) -> float:
    """Milliseconds a step."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(_STEPS):
        step()
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - began) / _STEPS


def main() -> None:
    """Both ways by turns, for a job that waits for its launches and for one that does not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", help="a folder for the result file")
    chosen = parser.parse_args()
    record = torch.cuda.memory._record_memory_history  # noqa: SLF001
    rows = []
    out = str(Path(chosen.out) / "autopsy-cost.json") if chosen.out else None
    for name, width, tokens in (("launch-bound", 256, 64), ("compute-bound", 1024, 1024)):
        step = step_of(width, tokens)
        timed(step)
        without, ready = [], []
        for _ in range(_TURNS):
            record(None)
            timed(step)
            without.append(timed(step))
            record("state", context="alloc", stacks="python")
            timed(step)
            ready.append(timed(step))
        record(None)
        ratio = statistics.median(one / other for one, other in zip(ready, without, strict=True))
        rows.append({"job": name, "without_ms": without, "ready_ms": ready, "ratio": ratio})
        print(name, f"{statistics.median(without):.3f} ms, ready {ratio:.4f}x", flush=True)
        write("autopsy-cost", {"rows": rows}, out)


if __name__ == "__main__":
    main()
