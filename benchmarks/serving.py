"""`flatout serve` under load: batches against one by one, LitServe beside it, overload, memory, SIGTERM.

    python -m benchmarks.serving [--parts batching,litserve,overload,soak,sigterm] [--out FOLDER]

Anywhere; on a GPU with a model for one (serving_model.py). Servers take turns under the same load in one
run. The client runs on the same machine and shares its cores: figures are for comparing, not for boasting.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import functools
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import torch

from benchmarks.machine import write
from flatout.infer.bench.client import Client, request_bytes
from flatout.infer.bench.loading import Sample, at_once, at_rate
from flatout.infer.bench.payload import Payload
from flatout.infer.bench.summing import point
from flatout.records.bench import LoadPoint

_TARGET = "benchmarks.serving_model:make"
_ON_GPU = torch.cuda.is_available()
_LOADS = (1, 8, 32, 128, 512) if _ON_GPU else (1, 4, 8, 16, 32, 64)


@dataclasses.dataclass
class Server:
    """A process, and where it listens."""

    name: str
    process: subprocess.Popen[bytes]
    port: int
    about: dict[str, Any]

    @functools.cached_property
    def payload(self) -> Payload:
        """The same item again and again."""
        url = urlsplit(f"http://127.0.0.1:{self.port}")
        from benchmarks.serving_model import make

        (example,) = make()[1]
        (spec,) = self.about.get("inputs") or (["ids:"] if _ON_GPU else ["input:"])
        values = [0.5] * 16 if spec.endswith("[16]") else example[0].tolist()
        body = json.dumps({"inputs": {spec.partition(":")[0]: values}}).encode()
        return Payload(
            "/predict", request_bytes(url, "/predict", body, {"content-type": "application/json"}), "", False
        )

    def client(self) -> Client:
        """Connections to it."""
        return Client(urlsplit(f"http://127.0.0.1:{self.port}"), 60.0)

    def processes(self) -> list[psutil.Process]:
        """All that it consists of."""
        whole = psutil.Process(self.process.pid)
        return [whole, *whole.children(recursive=True)]

    def resident_bytes(self) -> int:
        """Of all its processes."""
        return sum(one.memory_info().rss for one in self.processes())

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """It takes no time of the machine: some servers look for work all the time."""
        for one in self.processes():
            one.suspend()
        try:
            yield
        finally:
            for one in self.processes():
                one.resume()


@contextlib.contextmanager
def ours(name: str, *arguments: str, target: str = _TARGET) -> Iterator[Server]:
    command = [sys.executable, "-m", "flatout", "serve", "--json", "--port", "0", target, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        text = b""
        while not text.endswith(b"\n}\n"):
            line = process.stdout.readline()
            assert line, f"{name} was never ready"
            text += line
        about = json.loads(text)
        yield Server(name, process, int(about["url"].rpartition(":")[2]), about)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@contextlib.contextmanager
def litserve(most: int, wait_s: float) -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.serving_litserve", str(port), str(most), str(wait_s)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        server = Server("litserve", process, port, {})
        until = time.monotonic() + 120
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                if asyncio.run(_status(server)) == 200:
                    break
            time.sleep(0.5)
        yield server
    finally:
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()
        process.kill()
        process.wait()


async def _status(server: Server) -> int:
    client = server.client()
    try:
        return (await client.send(server.payload.request)).status
    finally:
        client.close()


def held(
    server: Server, *, concurrency: int | None = None, rate: float | None = None, seconds: float
) -> LoadPoint:
    async def run() -> list[Sample]:
        client = server.client()
        try:
            if rate is not None:
                return await at_rate(client, server.payload, rate, seconds)
            return await at_once(client, server.payload, concurrency or 1, seconds)
        finally:
            client.close()

    return point(asyncio.run(run()), seconds, concurrency=concurrency, rate=rate, streams=False)


def said(name: str, one: LoadPoint) -> None:
    p99 = one.latency_ms.p99 if one.latency_ms else float("nan")
    rate = f"{one.answered_per_s:9.1f}/s"
    print(f"{name:12} {one.load:6g} {rate}  p99 {p99:8.1f} ms  {one.statuses} {one.errors}", flush=True)


Keep = Callable[[dict[str, Any]], None]


def by_turns(servers: list[Server], seconds: float, keep: Keep) -> dict[str, list[dict[str, Any]]]:
    """Each load for each server, one server after the other, twice; the better of both is kept."""
    found: dict[str, list[dict[str, Any]]] = {server.name: [] for server in servers}
    for load in _LOADS:
        best: dict[str, LoadPoint] = {}
        for _ in range(2):
            for server in servers:
                with contextlib.ExitStack() as others:
                    for other in servers:
                        if other is not server:
                            others.enter_context(other.stopped())
                    held(server, concurrency=load, seconds=0.5)
                    one = held(server, concurrency=load, seconds=seconds)
                said(server.name, one)
                if server.name not in best or one.answered_per_s > best[server.name].answered_per_s:
                    best[server.name] = one
        for name, one in best.items():
            found[name].append(dataclasses.asdict(one))
        keep({"points": found, "is_whole": False})
    return found


def batching(seconds: float, keep: Keep) -> dict[str, Any]:
    """The most answers a second with a p99 no longer than that of one by one, at each of its loads."""
    wide = ("--queue", "4096")
    with ours("one by one", "--max-batch", "1", *wide) as single, ours("batches", *wide) as batched:
        points = by_turns([single, batched], seconds, keep)
        sizing = batched.about["sizing"]
    ratios = {}
    for alone in points["one by one"]:
        bound = alone["latency_ms"]["p99"]
        within = [one["answered_per_s"] for one in points["batches"] if one["latency_ms"]["p99"] <= bound]
        ratios[alone["concurrency"]] = max(within, default=0.0) / alone["answered_per_s"]
        print(
            f"p99 of {bound:.1f} ms or less: {ratios[alone['concurrency']]:.2f} times one by one", flush=True
        )
    return {"points": points, "times_at_the_p99_of_one_by_one_with_so_many": ratios, "sizing": sizing}


def beside_litserve(seconds: float, keep: Keep) -> dict[str, Any]:
    if importlib.util.find_spec("litserve") is None:
        return {"skipped": "litserve is not installed"}
    with ours("flatout", "--queue", "4096") as own:
        sizing = own.about["sizing"]
        with litserve(sizing["most"], sizing["wait_s"]) as other:
            points = by_turns([own, other], seconds, keep)
    most = {name: max(one["answered_per_s"] for one in rows) for name, rows in points.items()}
    print(f"at their best: {most}", flush=True)
    return {"points": points, "best_per_s": most, "times": most["flatout"] / most["litserve"]}


@contextlib.contextmanager
def with_a_core_for_the_client(server: contextlib.AbstractContextManager[Server]) -> Iterator[Server]:
    """A server on all cores but one, the client's: whoever sends too much must not slow it down."""
    cores = sorted(os.sched_getaffinity(0))
    try:
        os.sched_setaffinity(0, cores[1:] or cores)
        with server as one:
            os.sched_setaffinity(0, cores[:1])
            yield one
    finally:
        os.sched_setaffinity(0, cores)


def overload(seconds: float) -> dict[str, Any]:
    """Twice what it can do, for a minute: who is accepted must not wait for those who are too many."""
    with with_a_core_for_the_client(ours("flatout")) as server:
        limit_ms = 1000 * server.about["sizing"]["latency_limit_s"]
        calm = held(server, concurrency=1, seconds=seconds)
        said("unloaded", calm)
        # With enough clients that full batches wait for each other.
        most = server.about["sizing"]["most"]
        capacity = max(
            held(server, concurrency=load, seconds=seconds).answered_per_s
            for load in (most // 2, most, 2 * most)
        )
        found = held(server, rate=2 * capacity, seconds=60.0)
        said("overload", found)
        refused = found.statuses.get("429", 0)
        after = held(server, concurrency=1, seconds=seconds)
        p99 = found.latency_ms.p99 if found.latency_ms else None
        inside = served_within(server)
        return {
            "sizing": server.about["sizing"],
            "unloaded": dataclasses.asdict(calm),
            "capacity_per_s": capacity,
            "overload": dataclasses.asdict(found),
            "limit_ms": limit_ms,
            "p99_of_limit": p99 / limit_ms if p99 else None,
            "answered_within_s_by_the_server": inside,
            "lost": found.sent - found.answered - refused,
            "after": dataclasses.asdict(after),
        }


def served_within(server: Server) -> dict[str, int]:
    """By the server's own clock: how many of its answers took how long. A client that is late blames it."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as page:
        lines = page.read().decode().splitlines()
    wanted = [
        line for line in lines if "duration_seconds_bucket" in line and '"200",http_route="/predict"' in line
    ]
    return {line.rpartition('le="')[2].partition('"')[0]: int(line.rpartition(" ")[2]) for line in wanted}


def soak(count: int) -> dict[str, Any]:
    """So many requests; memory must not grow with them."""
    with ours("flatout", "--queue", "4096", target="benchmarks.serving_model:small") as server:
        sizes, sent = [server.resident_bytes()], 0
        while sent < count:
            one = held(server, concurrency=32, seconds=10.0)
            sent += one.sent
            sizes.append(server.resident_bytes())
            print(f"{sent} requests, {sizes[-1] / 2**20:.0f} MiB", flush=True)
            assert one.answered == one.sent, one
    half = sizes[len(sizes) // 2]
    return {"requests": sent, "resident_bytes": sizes, "grown_share_of_second_half": sizes[-1] / half - 1}


def sigterm() -> dict[str, Any]:
    """In the middle of load: each request that was accepted is answered."""
    with ours("flatout", "--queue", "4096") as server:

        async def run() -> list[Sample]:
            client = server.client()
            loading = asyncio.ensure_future(at_once(client, server.payload, 32, 6.0))
            await asyncio.sleep(3.0)
            server.process.send_signal(signal.SIGTERM)
            return await loading

        samples = asyncio.run(run())
        code = server.process.wait(60)
    found = point(samples, 6.0, concurrency=32, rate=None, streams=False)
    said("sigterm", found)
    return {"exit_code": code, "statuses": found.statuses, "errors": found.errors, "answered": found.answered}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--parts", default="batching,litserve,overload,soak,sigterm")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--out", help="a folder for the result file")
    chosen = parser.parse_args()
    parts = {
        "batching": lambda keep: batching(chosen.seconds, keep),
        "litserve": lambda keep: beside_litserve(chosen.seconds, keep),
        "overload": lambda _: overload(chosen.seconds),
        "soak": lambda _: soak(chosen.requests),
        "sigterm": lambda _: sigterm(),
    }
    for part in chosen.parts.split(","):
        print(f"# {part}", flush=True)
        subject = f"serving-{part}"
        out = str(Path(chosen.out) / f"{subject}.json") if chosen.out else None
        # Others on the machine bend every figure here: how busy it was belongs to the result.
        before = os.getloadavg()
        found = parts[part](lambda so_far, subject=subject, out=out: write(subject, so_far, out))  # type: ignore[misc]
        write(subject, {"load_average_before": before, **found, "load_average": os.getloadavg()}, out)


if __name__ == "__main__":
    main()
