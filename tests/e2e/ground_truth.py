"""A training script whose costs are planted. It times each part with its own clock, and prints the truth.

Costs are slept or burnt where a watcher should find them: in the loader, copies of the batch, forward,
backward, clipping, the optimizer, and an evaluation every ten steps. Each part is timed twice: around the
call ("outer") and, where that is to be had, inside it ("inner"), so that a watcher's reading of the same call
must lie in between. The last line of the output is JSON: nanoseconds by step and part.
"""

import argparse
import collections
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

ROWS, COLUMNS, BATCH = 32, 1 << 18, 4
FEATURES = 64
FORWARD_S, BACKWARD_S, OPTIMIZER_S = 0.020, 0.010, 0.015
EVALUATION_FORWARD_S, EVALUATION_LOAD_S, EVALUATION_PAUSE_S = 0.005, 0.008, 0.006


def burn(seconds: float) -> None:
    """Keep this core busy."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


class Truth:
    """Nanoseconds by part, a step at a time: around the calls, and inside them."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self._outer: collections.Counter[str] = collections.Counter()
        self._inner: collections.Counter[str] = collections.Counter()
        self._evaluating = False
        self._boundary = time.perf_counter_ns()

    @contextlib.contextmanager
    def around(self, part: str) -> Iterator[None]:
        """Time a call."""
        self._evaluating = part == "evaluation"
        started = time.perf_counter_ns()
        yield
        self._outer[part] += time.perf_counter_ns() - started
        self._evaluating = False

    @contextlib.contextmanager
    def inside(self, part: str) -> Iterator[None]:
        """Time what a call does; what an evaluation does is its own."""
        started = time.perf_counter_ns()
        yield
        self._inner["evaluation" if self._evaluating else part] += time.perf_counter_ns() - started

    def close_step(self) -> None:
        """An update is done."""
        now = time.perf_counter_ns()
        self._outer["step"] = now - self._boundary - self._outer["evaluation"]
        self.steps.append({"outer": dict(self._outer), "inner": dict(self._inner)})
        self._outer, self._inner = collections.Counter(), collections.Counter()
        self._boundary = now


TRUTH = Truth()


class SlowRows(Dataset[Tensor]):
    """Rows that take their time."""

    def __init__(self, rows: int, columns: int, sleep_s: float) -> None:
        self.data = torch.randn(rows, columns)
        self.sleep_s = sleep_s

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, place: int) -> Tensor:
        with TRUTH.inside("loader"):
            time.sleep(self.sleep_s)
            return self.data[place]


class SlowBackward(torch.autograd.Function):
    """The identity, with a gradient that takes its time."""

    @staticmethod
    def forward(_context: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        return x.clone()

    @staticmethod
    def backward(_context: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        with TRUTH.inside("backward"):
            time.sleep(BACKWARD_S)
        return gradient


class Model(nn.Module):
    """Small, and slow on purpose; `ballast` makes clipping cost something."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, 1)
        self.ballast = nn.Parameter(torch.zeros(1 << 21))

    def forward(self, x: Tensor) -> Tensor:
        with TRUTH.inside("forward"):
            burn(FORWARD_S if self.training else EVALUATION_FORWARD_S)
            y: Tensor = SlowBackward.apply(self.layer(x[:, :FEATURES].float()))
            return y + self.ballast.sum()


class SlowOptimizer(torch.optim.Optimizer):
    """Gradient descent by one's own hand."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        with TRUTH.inside("optimizer"):
            time.sleep(OPTIMIZER_S)
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.sub_(group["lr"] * parameter.grad)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--load-ms", type=float, default=40.0)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--evaluate", choices=("before-batch", "after-batch"), default="before-batch")
    parser.add_argument("--forget-eval", action="store_true")
    options = parser.parse_args()

    torch.manual_seed(0)
    data = SlowRows(ROWS, COLUMNS, options.load_ms / 1000 / BATCH)
    loader = DataLoader(data, batch_size=BATCH, num_workers=options.workers)
    held_out = DataLoader(SlowRows(6, FEATURES, EVALUATION_LOAD_S / 2), batch_size=2)
    model = Model()
    optimizer = SlowOptimizer(model.parameters())
    staging = torch.empty(BATCH, COLUMNS)
    truth = TRUTH

    def batches() -> Iterator[Tensor]:
        while True:
            with truth.around("loader"):
                iterator = iter(loader)
            batch = None
            while True:
                with truth.around("loader"):
                    batch = next(iterator, None)
                if batch is None:
                    break
                yield batch

    def evaluate() -> None:
        with truth.around("evaluation"), torch.no_grad():
            if not options.forget_eval:
                model.eval()
            for x in held_out:
                with truth.inside("pause"):
                    time.sleep(EVALUATION_PAUSE_S)
                model(x)
            model.train()

    source = batches()
    for number in range(options.steps):
        due = number % 10 == 5
        if due and options.evaluate == "before-batch":
            evaluate()
        batch = next(source)
        if due and options.evaluate == "after-batch":
            evaluate()
        with truth.around("copy"):
            staging.copy_(batch)
        with truth.around("copy"):
            wide = staging.to(torch.float64)
        with truth.around("forward"):
            y = model(wide)
        loss = y.square().mean()
        optimizer.zero_grad()
        with truth.around("backward"):
            loss.backward()
        with truth.around("clipping"):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with truth.around("optimizer"):
            optimizer.step()
        truth.close_step()
    whole = {"steps": truth.steps, "copied_bytes": staging.nbytes * 2, "samples": BATCH}
    sys.stdout.write(json.dumps(whole) + "\n")


if __name__ == "__main__":
    main()
