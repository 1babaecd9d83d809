"""What debug switches cost: a training step with each of those that a running process can turn on.

    python -m benchmarks.debug_switches [--rounds 20]          # on a GPU: GPT-2 124M; elsewhere a small GPT

`blocking` has to be there before CUDA starts, and is not among them. `deterministic` needs
CUBLAS_WORKSPACE_CONFIG on a GPU, which is set here for all.
"""

import argparse
import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

from benchmarks.by_turns import alone, compare
from benchmarks.finite_updates import Job
from benchmarks.machine import write
from flatout.inside.debugging.catalogue import SWITCHES
from flatout.inside.debugging.switch import Switch


@contextlib.contextmanager
def on(kind: type[Switch]) -> Iterator[None]:
    """A switch, for a block of steps."""
    with tempfile.TemporaryDirectory() as folder:
        switch = kind(torch, lambda: Path(folder))
        switch.turn_on()
        yield
        switch.turn_off()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out")
    chosen = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    job = Job(device, fused=device == "cuda")
    ways = {"none": alone(job.by_hand)}
    for kind in SWITCHES:
        if not kind.needs_cuda or (device == "cuda" and kind.name != "blocking"):
            ways[kind.name] = (job.by_hand, lambda kind=kind: on(kind))
    result = {"subject": "cost of debug switches", **compare(ways, chosen.rounds, 6)}
    print(json.dumps(result, indent=1))
    write("debug-switches", result, chosen.out)


if __name__ == "__main__":
    main()
