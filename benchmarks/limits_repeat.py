"""Runs `flatout limits --fresh` several times: how long it takes, and how well it repeats itself."""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.machine import write

# Measured on other H200s (torch 2.11) by hand: a mean of ten products after three warm-ups, 8192 cubed.
REFERENCES = {
    "NVIDIA H200": {
        "matmul_flops_per_s.bf16": 780e12,
        "matmul_flops_per_s.fp16": 751e12,
        "matmul_flops_per_s.tf32": 396e12,
        "matmul_flops_per_s.fp8": 1472e12,
        "memory_copy_bytes_per_s": 4.29e12,
        "h2d_pinned_bytes_per_s": 55e9,
    }
}


def figures(measured: dict[str, Any]) -> dict[str, float]:
    """Every measured number, by a flat name."""
    flat = {}
    for name, value in measured.items():
        if isinstance(value, float):
            flat[name] = value
        elif isinstance(value, dict) and name != "unknown":
            flat.update({f"{name}.{key}": number for key, number in value.items()})
    return flat


def run_once(cache: str) -> tuple[float, dict[str, Any]]:
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "flatout", "limits", "--fresh", "--json"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "FLATOUT_CACHE_DIR": cache},
    )
    return time.perf_counter() - start, json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--out")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        runs = [run_once(cache) for _ in range(chosen.runs)]
    documents = [document for _, document in runs]
    reference = REFERENCES.get(documents[0]["device"]["name"], {})
    rows = []
    flat = [figures(document["measured"]) for document in documents]
    for name in flat[0]:
        values = [run[name] for run in flat]
        step = max(abs(later / earlier - 1) for earlier, later in itertools.pairwise(values))
        wanted = reference.get(name)
        rows.append(
            {
                "figure": name,
                "values": values,
                "largest_change_between_runs": step,
                "reference": wanted,
                "against_reference": sorted(values)[len(values) // 2] / wanted - 1 if wanted else None,
            }
        )
        against = f"{rows[-1]['against_reference']:+7.1%}" if wanted else "       "
        print(f"{name:44} {sorted(values)[len(values) // 2]:12.4g}  repeats within {step:6.2%}  {against}")
    seconds = [took for took, _ in runs]
    print("seconds, whole command:", ", ".join(f"{took:.1f}" for took in seconds))
    result = {
        "subject": "flatout limits --fresh, several times in a row",
        "whole_command_s": seconds,
        "figures": rows,
        "clocks": [document["clocks"] for document in documents],
        "matmuls_of_the_last_run": documents[-1]["matmuls"],
        "cpu_of_the_last_run": documents[-1]["cpu"] and documents[-1]["cpu"]["measured"],
    }
    write("limits", result, chosen.out)


if __name__ == "__main__":
    main()
