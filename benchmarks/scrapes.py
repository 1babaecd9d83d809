"""What scrapes cost: 200 a second for a minute, and one of a thousand GPUs.

The exporter is the real command on fake GPUs (their answers were recorded on an H200), in a process of its
own; the thousand are a frame of a thousand devices behind the same server. Latency is from when a scrape was
due to its last byte, so that a slow answer also counts for those that waited behind it.
"""

import argparse
import contextlib
import dataclasses
import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.machine import write
from flatout.monitor.export.address import Address
from flatout.monitor.export.exporter import Exporter
from flatout.monitor.export.server import MetricsServer, Security
from flatout.records.watching import Frame
from tests.e2e.exporting import Exporting, until
from tests.fakes.machines import h200, h200_sample

PROMETHEUS = {
    "Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5",
    "Accept-Encoding": "gzip",
}


@dataclasses.dataclass
class Scraped:
    """What came of many scrapes."""

    latencies_s: list[float] = dataclasses.field(default_factory=list)
    errors: int = 0
    bytes_each: int = 0


def scrape_on_time(url: str, rate: float, seconds: float, connections: int) -> Scraped:
    """So many scrapes a second, spread over connections that stay open."""
    place = urllib.parse.urlparse(url)
    found = Scraped()
    lock = threading.Lock()
    began = time.monotonic() + 0.5
    count = int(rate * seconds)

    def one(first: int) -> None:
        connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=30)
        for number in range(first, count, connections):
            due = began + number / rate
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                connection.request("GET", "/metrics", headers=PROMETHEUS)
                answer = connection.getresponse()
                body = answer.read()
                failed = answer.status != 200
            except (OSError, http.client.HTTPException):
                failed, body = True, b""
                connection.close()
            with lock:
                found.errors += failed
                found.latencies_s.append(time.monotonic() - due)
                found.bytes_each = len(body) or found.bytes_each
        connection.close()

    threads = [threading.Thread(target=one, args=(n,)) for n in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@contextlib.contextmanager
def exporting(gpus: int) -> Iterator[Exporting]:
    words = ("--listen", "127.0.0.1:0")
    with tempfile.TemporaryDirectory() as folder, Exporting(Path(folder), *words, gpus=gpus) as running:
        until(lambda: running.scrape().get(("flatout_device_up", str(gpus - 1))) == 1, "the GPUs")
        yield running


def under_load(rate: float, seconds: float, gpus: int) -> dict[str, Any]:
    with exporting(gpus) as running:
        process = psutil.Process(running.process.pid)
        before = sum(process.cpu_times()[:2])
        found = scrape_on_time(running.url, rate, seconds, connections=20)
        cpu_s = sum(process.cpu_times()[:2]) - before
        memory = process.memory_info().rss
    return {
        "gpus": gpus,
        "scrapes": len(found.latencies_s),
        "scrapes_per_s": rate,
        "errors": found.errors,
        "latency_ms": percentiles(found.latencies_s),
        "compressed_bytes_each": found.bytes_each,
        "exporter_cores": round(cpu_s / seconds, 3),
        "exporter_memory_mib": round(memory / 2**20),
    }


def idle(seconds: float, gpus: int) -> dict[str, Any]:
    """What the exporter costs while nobody asks."""
    with exporting(gpus) as running:
        process = psutil.Process(running.process.pid)
        before = sum(process.cpu_times()[:2])
        time.sleep(seconds)
        return {
            "gpus": gpus,
            "exporter_cores": round((sum(process.cpu_times()[:2]) - before) / seconds, 4),
        }


def many_gpus(gpus: int, times: int) -> dict[str, Any]:
    """Whole scrapes, one after the other, each of a new frame."""
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.scrapes", "--serve", str(gpus)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        place = urllib.parse.urlparse(child.stdout.readline().strip())
        took: dict[str, list[float]] = {}
        size = 0
        for name, headers in (("plain", {}), ("openmetrics, compressed", PROMETHEUS)):
            for _ in range(times):
                time.sleep(1.1)  # answers are shared for a second
                began = time.monotonic()
                connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
                connection.request("GET", "/metrics", headers=headers)
                size = max(size, len(connection.getresponse().read()))
                took.setdefault(name, []).append(time.monotonic() - began)
                connection.close()
        return {
            "gpus": gpus,
            "bytes": size,
            "seconds": {
                name: {"median": round(statistics.median(all_s), 3), "worst": round(max(all_s), 3)}
                for name, all_s in took.items()
            },
        }
    finally:
        child.terminate()
        child.wait(30)


def serve(gpus: int) -> None:
    """Frames of so many GPUs, each taken when it is asked for."""
    devices = tuple(h200(index=n, uuid=f"GPU-{n:08x}-0000-0000-0000-000000000000") for n in range(gpus))

    def frame() -> Frame:
        now = time.time()
        samples = tuple(
            h200_sample(index=d.index, uuid=d.uuid, taken_at_unix_s=now, kernel_running_share=0.5)
            for d in devices
        )
        return Frame(host="box", taken_at_unix_s=now, devices=devices, samples=samples)

    with MetricsServer(Address("127.0.0.1", 0), Exporter(frame), Security()) as server:
        print(server.url, flush=True)
        server.serve_forever()


def percentiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        name: round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999), ("worst", 1.0))
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--many", type=int, default=1000)
    parser.add_argument("--serve", type=int)
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    result = {
        "load_average_before": os.getloadavg(),
        "under_load": under_load(options.rate, options.seconds, options.gpus),
        "idle": idle(min(20.0, options.seconds), options.gpus),
        "one_scrape": many_gpus(options.many, times=5),
    }
    print(result)
    write("scrapes", result, options.out)


if __name__ == "__main__":
    main()
