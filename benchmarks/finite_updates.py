"""What it costs to look at each update: `flatout.Update` and `flatout run --on-nan`, beside the same by hand.

    python -m benchmarks.finite_updates [--rounds 30]          # on a GPU: GPT-2 124M; elsewhere a small GPT

Ways to make the same update of the same model take turns in one process. No update of it is skipped.
"""

import argparse
import contextlib
import json
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

import flatout
from benchmarks.by_turns import alone, compare
from benchmarks.machine import write
from examples.gpt import GPT
from flatout.inside.session import Session
from flatout.records.session import Order
from flatout.runtime.finite.guest import FiniteUpdates

_CLIP = 1.0


class Job:
    """A GPT with AdamW, on one batch."""

    def __init__(self, device: str, *, fused: bool) -> None:
        large = device == "cuda"
        torch.manual_seed(0)
        self.model = GPT(50257, 1024, 768, 12, 12).to(device) if large else GPT(1000, 128, 128, 4, 4)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=fused)
        self.tokens = torch.randint(1000, (4, 1024 if large else 128), device=device)
        self.update = flatout.Update(self.model, self.optimizer)
        self.clipped = flatout.Update(self.model, self.optimizer, clip_norm=_CLIP)

    def backward(self) -> Any:
        """Both passes."""
        logits = self.model(self.tokens)
        loss = nn.functional.cross_entropy(logits.view(-1, logits.size(-1)), self.tokens.view(-1))
        loss.backward()
        return loss

    def by_hand(self) -> None:
        """As scripts do it."""
        self.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def clipped_by_hand(self) -> None:
        """As scripts do it that clip."""
        self.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), _CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()


@contextlib.contextmanager
def watched(policy: str) -> Iterator[None]:
    """A session, as in `flatout run`, with or without --on-nan."""
    with tempfile.TemporaryDirectory() as folder:
        session = Session(torch, Order(folder=folder, on_nan=policy, patience=20))
        session.arm()
        guest = FiniteUpdates(session) if policy else None
        if guest is not None:
            guest.install()
        yield
        if guest is not None:
            guest.remove()
        session.finish()
        session.disarm()


def measure(device: str, rounds: int, *, fused: bool) -> dict[str, Any]:
    job = Job(device, fused=fused)
    return {
        "update": compare(
            {
                "by hand": alone(job.by_hand),
                "flatout.Update": alone(lambda: job.update.step(job.backward())),
            },
            rounds,
            8,
        ),
        "clipped": compare(
            {
                "by hand": alone(job.clipped_by_hand),
                "flatout.Update": alone(lambda: job.clipped.step(job.backward())),
            },
            rounds,
            8,
        ),
        "run": compare(
            {
                "flatout run": (job.by_hand, lambda: watched("")),
                "flatout run --on-nan skip": (job.by_hand, lambda: watched("skip")),
            },
            rounds,
            8,
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out")
    chosen = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    result = {
        "subject": "cost of looking at updates",
        "foreach": measure(device, chosen.rounds, fused=False),
        "fused": measure(device, chosen.rounds, fused=True),
    }
    print(json.dumps(result, indent=1))
    write("finite-updates", result, chosen.out)


if __name__ == "__main__":
    main()
