"""`flatout trace` against HolisticTraceAnalysis, on the same made-up files, by turns in one run.

Each reads the file and answers the same question (where the device's time went, and which kernels took it)
in a process of its own; wall time, and the most memory that it and its children held at once.

    python -m benchmarks.trace_reading --hta ~/hta/bin/python --megabytes 100 1000
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.machine import write
from benchmarks.traces import write_trace

OURS = "import sys; from flatout.cli.main import main; sys.exit(main())"
THEIRS = """
import sys
from hta.trace_analysis import TraceAnalysis
found = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
found.get_temporal_breakdown(visualize=False)
found.get_gpu_kernel_breakdown(visualize=False)
"""


def measured(command: list[str]) -> dict[str, float]:
    """Seconds, and bytes of the whole family of processes at their most."""
    peak = 0
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    over = threading.Event()

    def watch() -> None:
        nonlocal peak
        family = psutil.Process(process.pid)
        while not over.wait(0.2):  # asking costs time, and more the more there is
            try:
                members = [family, *family.children(recursive=True)]
                # Pages that several share are counted once.
                peak = max(peak, sum(one.memory_full_info().pss for one in members))
            except psutil.Error:
                continue

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    _, errors = process.communicate()
    took_s = time.monotonic() - began
    over.set()
    watcher.join()
    if process.returncode:
        raise SystemExit(f"{command[0]} failed:\n{errors[-2000:]}")
    return {"seconds": took_s, "peak_bytes": peak}


def middle(runs: list[dict[str, float]]) -> dict[str, float]:
    """The median of each figure."""
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--hta", help="a Python that has HolisticTraceAnalysis")
    parser.add_argument("--megabytes", type=float, nargs="+", default=[100.0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out")
    chosen = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for megabytes in chosen.megabytes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            events = write_trace(path, megabytes)
            path.read_bytes()[:1]  # both find it in the page cache
            ours: list[dict[str, float]] = []
            theirs: list[dict[str, float]] = []
            for _ in range(chosen.turns):
                ours.append(measured([sys.executable, "-c", OURS, "trace", "--json", str(path)]))
                if chosen.hta:
                    theirs.append(measured([chosen.hta, "-c", THEIRS, str(path)]))
            row: dict[str, Any] = {
                "megabytes": path.stat().st_size / 1e6,
                "events": events,
                "flatout": middle(ours),
            }
            if theirs:
                row["hta"] = middle(theirs)
                row["times_faster"] = row["hta"]["seconds"] / row["flatout"]["seconds"]
                row["share_of_memory"] = row["flatout"]["peak_bytes"] / row["hta"]["peak_bytes"]
            rows.append({**row, "all": {"flatout": ours, "hta": theirs}})
            print(row, flush=True)
    write("trace-reading", {"subject": "reading traces", "cores": os.cpu_count(), "rows": rows}, chosen.out)


if __name__ == "__main__":
    main()
