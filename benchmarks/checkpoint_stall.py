"""What a checkpoint costs a training: a GPT with AdamW, `flatout.Checkpointer` beside `torch.save`.

    python -m benchmarks.checkpoint_stall [--size 1.3b] [--saves 4] [--limit 100] [--out FOLDER]    # on a GPU

A stall is for how long the training stands still for a save. Old checkpoints are pruned: the disk must hold
two.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import flatout
from benchmarks.machine import write

# Blocks, width and heads.
SIZES = {"tiny": (2, 64, 2), "124m": (12, 768, 12), "1.3b": (24, 2048, 16)}
_LENGTH, _WORDS, _BATCH = 1024, 50304, 2
# Beside each save: steps drift by as much as a save may cost.
_STEPS_BETWEEN = 40


class Training:
    """A GPT in bfloat16 by autocast, with its optimizer."""

    def __init__(self, size: str, device: str) -> None:
        blocks, width, heads = SIZES[size]
        torch.manual_seed(0)
        with torch.device(device):
            layer = nn.TransformerEncoderLayer(
                width, heads, 4 * width, 0.0, batch_first=True, norm_first=True
            )
            self.model = nn.Sequential(
                nn.Embedding(_WORDS, width),
                nn.TransformerEncoder(layer, blocks, enable_nested_tensor=False),
                nn.Linear(width, _WORDS),
            )
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
        """Milliseconds since then, with all that the training has launched."""
        if self.device == "cuda":
            torch.cuda.current_stream().synchronize()
        return 1000 * (time.perf_counter() - began)


def main() -> None:
    """Both ways, one after the other, in one process; what is known so far is always on disk."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="1.3b")
    parser.add_argument("--saves", type=int, default=4)
    parser.add_argument("--limit", type=float, default=1e6, help="seconds after which nothing new is begun")
    parser.add_argument("--folder", help="where checkpoints go; default: a temporary folder")
    parser.add_argument("--out", help="a folder for the result file")
    chosen = parser.parse_args()
    deadline = time.monotonic() + chosen.limit
    training = Training(chosen.size, "cuda" if torch.cuda.is_available() else "cpu")
    for _ in range(5):
        training.step()
    out = str(Path(chosen.out) / f"checkpoint-stall-{chosen.size}.json") if chosen.out else None
    about = sizes_of(training)
    print(about, flush=True)
    folder = Path(tempfile.mkdtemp(dir=chosen.folder))
    try:
        for result in measured(training, folder, chosen.saves, deadline):
            write(f"checkpoint-stall-{chosen.size}", {**about, **result}, out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sizes_of(training: Training) -> dict[str, int]:
    """Of what is saved."""
    states = [one for state in training.optimizer.state.values() for one in state.values()]
    parameters = list(training.model.parameters())
    return {
        "parameters": sum(one.numel() for one in parameters),
        "state_bytes": sum(one.numel() * one.element_size() for one in (*states, *parameters)),
    }


def measured(training: Training, folder: Path, saves: int, deadline: float) -> Iterator[dict[str, Any]]:
    """Steps with and without a save, in milliseconds: torch's way once, then ours, as far as it has come."""
    parts: dict[str, Any] = {"model": training.model, "optimizer": training.optimizer}
    plain = [training.step() for _ in range(_STEPS_BETWEEN)]
    theirs_ms = saved_by_torch(training, parts, folder / "theirs.pt")
    print(f"step {statistics.median(plain):.1f} ms, torch.save {theirs_ms:.0f} ms", flush=True)
    ours: list[dict[str, Any]] = []
    with flatout.Checkpointer(folder / "ours", every=None, keep=1, **parts) as checkpointer:
        for number in range(saves):
            longest_s = max((one["written_after_s"] for one in ours), default=0.0)
            if time.monotonic() + longest_s > deadline:
                print("no time for more", flush=True)
                break
            one = saved_by_us(training, checkpointer, number + 1)
            after = [training.step() for _ in range(_STEPS_BETWEEN)]
            ours.append(
                {**one, "step_before_ms": statistics.fmean(plain), "step_after_ms": statistics.fmean(after)}
            )
            print("flatout", ours[-1], flush=True)
            plain = after
            yield summed_up(ours, theirs_ms)


def saved_by_torch(training: Training, parts: dict[str, Any], path: Path) -> float:
    """How long the training stands still for it."""
    began = time.perf_counter()
    torch.save({name: part.state_dict() for name, part in parts.items()}, path)
    took_ms = training.ended(began)
    path.unlink()
    training.step()
    return took_ms


def saved_by_us(training: Training, checkpointer: Any, number: int) -> dict[str, Any]:
    """What the call takes, what the training stands still for, and its steps while it is written."""
    began = time.perf_counter()
    checkpointer.save(number)
    call_ms = 1000 * (time.perf_counter() - began)
    stall_ms = training.ended(began)
    meanwhile = []
    saved = time.perf_counter()
    while checkpointer.is_saving:
        meanwhile.append(training.step())
    return {
        "call_ms": call_ms,
        "stall_ms": stall_ms,
        "written_after_s": time.perf_counter() - saved,
        "problem": checkpointer.problem(),
        "steps_meanwhile": len(meanwhile),
        "steps_meanwhile_ms": statistics.fmean(meanwhile) if meanwhile else None,
        "percentiles_of_steps_meanwhile_ms": percentiles(meanwhile),
        "longest_steps_meanwhile_ms": sorted(meanwhile)[-5:],
    }


def percentiles(steps_ms: list[float]) -> dict[str, float]:
    """Tells steps that all take a little longer from a few that take much longer."""
    if len(steps_ms) < 2:
        return {}
    cuts = statistics.quantiles(steps_ms, n=100)
    return {f"p{share}": cuts[share - 1] for share in (50, 75, 90, 95, 99)}


def cost_ms(one: dict[str, Any]) -> float:
    """The stall, and what steps took longer while it was written than those before and after."""
    usual_ms = (one["step_before_ms"] + one["step_after_ms"]) / 2
    longer_ms = (one["steps_meanwhile_ms"] or usual_ms) - usual_ms
    return float(one["stall_ms"] + one["steps_meanwhile"] * max(0.0, longer_ms))


def summed_up(ours: list[dict[str, Any]], theirs_ms: float) -> dict[str, Any]:
    """The first save makes room on host and GPU: it stands apart."""
    costs_ms = [cost_ms(one) for one in ours]
    later = costs_ms[1:] or costs_ms
    return {
        "flatout": ours,
        "first_stall_ms": ours[0]["stall_ms"],
        "stall_ms": statistics.median([one["stall_ms"] for one in ours[1:] or ours]),
        "torch_save_stall_ms": theirs_ms,
        # What a checkpoint costs in all, stall and slower steps while it is written, of a minute.
        "share_of_a_minute": statistics.median(later) / 60_000,
        "share_of_a_minute_first": costs_ms[0] / 60_000,
        "share_of_a_minute_torch_save": theirs_ms / 60_000,
    }


if __name__ == "__main__":
    main()
