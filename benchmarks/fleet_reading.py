"""How long `flatout fleet` takes on a Prometheus server with a day of many GPUs, scraped as is usual.

The data are made up: machines of eight GPUs with one job each, most of them busy. They go into blocks with
promtool, a real server opens them, and the real command asks it. The first look finds cold files.

    python -m benchmarks.fleet_reading --gpus 1000 --every 15 --looks 5
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.machine import write
from tests.fakes.fleet import Gpu, Job, series_of
from tests.fakes.prometheus import PROMETHEUS, PROMTOOL, serving

DAY_S = 86400
_BLOCK_S = 7200
_LONG = ("info", "up", "kernel_running_ratio", "processes")


def fleet(gpus: int, seed: int = 0) -> tuple[list[Gpu], list[Job]]:
    """Machines that train, with something wrong on every tenth."""
    dice = random.Random(seed)
    made: list[Gpu] = []
    jobs: list[Job] = []
    for number in range(gpus // 8):
        name = f"node-{number:04}"
        held = [Gpu(machine=name, index=index, running=dice.uniform(0.85, 0.99)) for index in range(8)]
        if number % 10 == 0:
            held[3].__dict__.update(running=0.0, sm=0.0, tensor=0.0)
        if number % 10 == 5:
            held[5].__dict__.update(reasons=("thermal_hardware",), throttled_for_s=3600.0, clock=1.2e9)
        made += held
        steps = tuple(dice.uniform(0.4, 0.41) for _ in range(8))
        jobs.append(
            Job(machine=name, run=f"run-{number:06}", uuids=tuple(gpu.id for gpu in held), ranks=steps)
        )
    return made, jobs


def write_blocks(folder: Path, gpus: list[Gpu], jobs: list[Job], every_s: float, now: float) -> Path:
    """History in files of two hours each, which is what promtool makes blocks of; then what is recent."""
    data = folder / "data"
    # Blocks must not overlap: what is recent alone goes into files of its own names.
    start = int(now - DAY_S)
    begin = start - start % _BLOCK_S
    for at in range(begin, int(now) + 1, _BLOCK_S):
        _to_blocks(folder, data, _history(gpus, max(at, start), min(at + _BLOCK_S, int(now)), every_s))
    short = (
        series
        for series in series_of(gpus, jobs, now)
        if series[0].removeprefix("flatout_device_") not in _LONG
    )
    _to_blocks(
        folder,
        data,
        (
            f"{name}{{{_labels(labels)}}} {value:.6f} {at:.3f}\n"
            for name, labels, looks in short
            for at, value in looks
        ),
    )
    return data


def _history(gpus: list[Gpu], begin: int, end: int, every_s: float) -> Iterator[str]:
    times = [f"{begin + n * every_s:.3f}\n" for n in range(int((end - begin) / every_s))]
    for gpu in gpus:
        labels = _labels(gpu.labels)
        facts = _labels({"vendor": "nvidia", "name": gpu.name, "memory_bytes": "85520809984"})
        heads = (
            f"flatout_device_info{{{labels},{facts}}} 1 ",
            f"flatout_device_up{{{labels}}} 1 ",
            f"flatout_device_kernel_running_ratio{{{labels}}} {gpu.running:.4f} ",
            f"flatout_device_processes{{{labels}}} {gpu.processes:.0f} ",
        )
        for head in heads:
            yield "".join([head + at for at in times])


def _labels(labels: dict[str, str]) -> str:
    return ",".join(f'{name}="{value}"' for name, value in labels.items())


def _to_blocks(folder: Path, data: Path, lines: Iterator[str]) -> None:
    text = folder / "metrics.txt"
    with text.open("w") as out:
        out.writelines(lines)
        out.write("# EOF\n")
    words = [
        PROMTOOL or "promtool",
        "tsdb",
        "create-blocks-from",
        "openmetrics",
        str(text),
        str(data),
        "--quiet",
    ]
    subprocess.run(words, check=True, capture_output=True)
    text.unlink()


def version() -> str:
    """Of the server."""
    told = subprocess.run([PROMETHEUS or "", "--version"], check=True, capture_output=True, text=True)
    return told.stdout.split("\n")[0]


def looked_at(url: str) -> tuple[float, dict[str, object]]:
    """Seconds of one command from its start to its end, and what it said."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "flatout", "fleet", "--url", url, "--json"],
        check=False,
        capture_output=True,
        text=True,
    )
    took_s = time.monotonic() - began
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr)
    return took_s, {"bytes": len(done.stdout), **json.loads(done.stdout)}


def main() -> None:
    """Make, serve, look, write down."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--gpus", type=int, default=1000)
    options.add_argument("--every", type=float, default=15.0, help="seconds between scrapes")
    options.add_argument("--looks", type=int, default=5)
    options.add_argument("--out")
    asked = options.parse_args()
    if PROMETHEUS is None:
        raise SystemExit("no Prometheus on this machine")
    gpus, jobs = fleet(asked.gpus)
    with tempfile.TemporaryDirectory() as folder:
        data = write_blocks(Path(folder), gpus, jobs, asked.every, time.time())
        size = sum(file.stat().st_size for file in data.rglob("*") if file.is_file())
        with serving(data) as url:
            looks = [looked_at(url) for _ in range(asked.looks)]
    seconds = [took for took, _ in looks]
    last = looks[-1][1]
    result = {
        "generated_data": True,
        "gpus": last["gpus"],
        "machines": len(list(last["machines"])),  # type: ignore[call-overload]
        "scrape_interval_s": asked.every,
        "samples_of_history": len(gpus) * len(_LONG) * int(DAY_S / asked.every),
        "blocks_bytes": size,
        "prometheus": version(),
        "seconds_first": round(seconds[0], 2),
        "seconds_median_of_others": round(statistics.median(seconds[1:] or seconds), 2),
        "seconds": [round(one, 2) for one in seconds],
        "json_bytes": last["bytes"],
        "actions": len(list(last["actions"])),  # type: ignore[call-overload]
        "notes": last["notes"],
    }
    print(json.dumps(result, indent=1))
    write(f"fleet-{asked.gpus}-gpus", result, asked.out)


if __name__ == "__main__":
    main()
