"""What starting Flatout costs, as ratios to bare Python, click and torch, interleaved in one run."""

import argparse
import statistics
import subprocess
import sys
import time

from benchmarks.machine import write

COMMANDS = {
    "python": [sys.executable, "-c", "pass"],
    "import click": [sys.executable, "-c", "import click"],
    "import flatout": [sys.executable, "-c", "import flatout"],
    "flatout --help": [sys.executable, "-m", "flatout", "--help"],
    "import torch": [sys.executable, "-c", "import torch"],
    "flatout doctor": [sys.executable, "-m", "flatout", "doctor", "--json"],
}
SLOW = ("import torch", "flatout doctor")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out")
    chosen = parser.parse_args()
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for number in range(chosen.rounds + 1):
        for name, command in COMMANDS.items():
            if name in SLOW and number > chosen.rounds // 3:
                continue
            start = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
            if number:  # the first round fills the disk cache
                taken[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values) for name, values in taken.items()}
    for name, median in medians.items():
        print(f"{name:16} {1000 * median:8.1f} ms")
    ratios = {
        "flatout --help over import click": medians["flatout --help"] / medians["import click"],
        "import flatout over python": medians["import flatout"] / medians["python"],
        "doctor without torch's import, s": medians["flatout doctor"] - medians["import torch"],
    }
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f}")
    write(
        "startup",
        {"subject": "start-up cost", "median_s": medians, "ratios": ratios, "all_s": taken},
        chosen.out,
    )


if __name__ == "__main__":
    main()
