"""What a checkpoint costs a training: a GPT with AdamW, `flatout.Checkpointer` beside `torch.save`.

    python -m benchmarks.checkpoint_stall [--size 1.3b] [--saves 4] [--out FOLDER]      # on a GPU

A stall is what a step with a save takes beyond the steps around it. Old checkpoints are pruned: the disk must
hold two, and one of torch.save.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import flatout
from benchmarks.machine import write

# Blocks, width and heads.
SIZES = {"tiny": (2, 64, 2), "124m": (12, 768, 12), "1.3b": (24, 2048, 16)}
_LENGTH, _WORDS, _BATCH = 1024, 50304, 2
_STEPS_BETWEEN = 12


class Training:
    """A GPT in bfloat16 by autocast, with its optimizer."""

    def __init__(self, size: str, device: str) -> None:
        blocks, width, heads = SIZES[size]
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.model = nn.Sequential(
            nn.Embedding(_WORDS, width),
            nn.TransformerEncoder(layer, blocks, enable_nested_tensor=False),
            nn.Linear(width, _WORDS),
        ).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        length = _LENGTH if device == "cuda" else 32
        self.tokens = torch.randint(0, _WORDS, (_BATCH, length), device=device)
        self.device = device

    def step(self) -> float:
        """One update, to its end; its milliseconds."""
        began = time.perf_counter()
        with torch.autocast(self.device, torch.bfloat16):
            out = self.model(self.tokens)
            loss = nn.functional.cross_entropy(out.flatten(0, 1), self.tokens.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return self.ended(began)

    def ended(self, began: float) -> float:
        """Milliseconds since then, with all that was launched."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        return 1000 * (time.perf_counter() - began)


def main() -> None:
    """Both ways, one after the other, in one process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="1.3b")
    parser.add_argument("--saves", type=int, default=4)
    parser.add_argument("--folder", help="where checkpoints go; default: a temporary folder")
    parser.add_argument("--out", help="a folder for the result file")
    chosen = parser.parse_args()
    training = Training(chosen.size, "cuda" if torch.cuda.is_available() else "cpu")
    for _ in range(5):
        training.step()
    folder = Path(tempfile.mkdtemp(dir=chosen.folder))
    try:
        result = measured(training, folder, chosen.saves)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    parameters = sum(one.numel() for one in training.model.parameters())
    state_bytes = sum(
        one.numel() * one.element_size()
        for state in training.optimizer.state.values()
        for one in state.values()
    ) + sum(one.numel() * one.element_size() for one in training.model.parameters())
    out = str(Path(chosen.out) / f"checkpoint-stall-{chosen.size}.json") if chosen.out else None
    write(
        f"checkpoint-stall-{chosen.size}",
        {"parameters": parameters, "state_bytes": state_bytes, **result},
        out,
    )


def measured(training: Training, folder: Path, saves: int) -> dict[str, Any]:
    """Steps with and without a save, in milliseconds."""
    parts: dict[str, Any] = {"model": training.model, "optimizer": training.optimizer}
    plain = [training.step() for _ in range(_STEPS_BETWEEN)]
    ours: list[dict[str, Any]] = []
    with flatout.Checkpointer(folder / "ours", every=None, keep=1, **parts) as checkpointer:
        for number in range(saves):
            began = time.perf_counter()
            checkpointer.save(number + 1)
            call_ms = 1000 * (time.perf_counter() - began)
            with_save_ms = training.ended(began)
            meanwhile = []
            saved = time.perf_counter()
            while checkpointer.is_saving:
                meanwhile.append(training.step())
            ours.append(
                {
                    "call_ms": call_ms,
                    "stall_ms": with_save_ms,
                    "written_after_s": time.perf_counter() - saved,
                    "steps_meanwhile_ms": statistics.fmean(meanwhile) if meanwhile else None,
                    "steps_meanwhile": len(meanwhile),
                }
            )
            print("flatout", ours[-1], flush=True)
            plain += [training.step() for _ in range(_STEPS_BETWEEN)]
    theirs = []
    for _ in range(2):
        began = time.perf_counter()
        torch.save({name: part.state_dict() for name, part in parts.items()}, folder / "theirs.pt")
        theirs.append(training.ended(began))
        print("torch.save", theirs[-1], flush=True)
        training.step()
    step_ms = statistics.median(plain)
    costs_ms = [
        one["stall_ms"] + one["steps_meanwhile"] * max(0.0, (one["steps_meanwhile_ms"] or step_ms) - step_ms)
        for one in ours
    ]
    return {
        "step_ms": step_ms,
        "flatout": ours,
        "torch_save_stall_ms": theirs,
        # What a checkpoint costs in all, stall and slower steps while it is written, of a minute.
        "share_of_a_minute": statistics.median(costs_ms) / 60_000,
        "share_of_a_minute_torch_save": statistics.median(theirs) / 60_000,
    }


if __name__ == "__main__":
    main()
