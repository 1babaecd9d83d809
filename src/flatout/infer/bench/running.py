"""One bench: find what to send, hold load after load, and look for the knee."""

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from flatout.infer.bench.client import Client
from flatout.infer.bench.loading import at_once, at_rate
from flatout.infer.bench.payload import Payload, find_payload
from flatout.infer.bench.summing import knee, point, still_grows
from flatout.records.bench import Bench, LoadPoint
from flatout.records.errors import CallerMistake, EnvironmentProblem

# Before anything is counted: connections are opened, caches filled.
_WARM_UP_S, _WARM_UP = 1.0, 2
_MOST_DOUBLINGS = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchRequest:
    """What the caller wants."""

    url: str
    payload: Path | None = None
    token: str = ""
    # Requests a second, each for a while; or so many at a time; neither: doubled until it brings no more.
    rates: tuple[float, ...] = ()
    concurrencies: tuple[int, ...] = ()
    seconds: float = 5.0
    timeout_s: float = 60.0


def run_bench(request: BenchRequest, on_load: Callable[[str, int, int], None]) -> Bench:
    """Load the server; raises CallerMistake where it cannot be."""
    url = _address(request.url)
    try:
        import uvloop

        return uvloop.run(_run(request, url, on_load))
    except ImportError:
        return asyncio.run(_run(request, url, on_load))


def _address(words: str) -> SplitResult:
    """With a host and a port that can be, whether or not anybody listens there; raises CallerMistake."""
    try:
        url = urlsplit(words if "//" in words else f"http://{words}")
        # Both are looked at only where they are asked for.
        host, port = url.hostname or "", url.port
        host.encode("idna")
    except ValueError as error:
        raise _no_address(words, f": {error}") from error
    if url.scheme not in ("http", "https") or not host or port == 0:
        raise _no_address(words)
    return url


def _no_address(words: str, why: str = "") -> CallerMistake:
    return CallerMistake(
        f"{words!r} is no address of a server{why}",
        expected="http://host:port, with a port of 1 to 65535",
        remedy="flatout bench http://localhost:8000",
    )


async def _run(request: BenchRequest, url: SplitResult, on_load: Callable[[str, int, int], None]) -> Bench:
    payload = await find_payload(url, request.payload, request.token)
    await _warm_up(url, payload, request.timeout_s)
    points: list[LoadPoint] = []
    asked = len(request.rates or request.concurrencies)
    for number, (concurrency, rate) in enumerate(_loads(request)):
        words = f"{rate:g} requests a second" if rate is not None else f"{concurrency} at a time"
        on_load(words, number, asked)
        points.append(await _held(url, payload, request, concurrency, rate))
        if not asked and not still_grows(points):
            break
    place, reason = knee(points)
    return Bench(
        url=request.url,
        path=payload.path,
        payload=payload.source,
        streams=payload.streams,
        loop="open" if request.rates else "closed",
        points=tuple(points),
        knee=place,
        reason=reason,
    )


def _loads(request: BenchRequest) -> list[tuple[int | None, float | None]]:
    if request.rates:
        return [(None, rate) for rate in sorted(request.rates)]
    given = sorted(request.concurrencies) or [2**power for power in range(_MOST_DOUBLINGS)]
    return [(concurrency, None) for concurrency in given]


async def _held(
    url: SplitResult, payload: Payload, request: BenchRequest, concurrency: int | None, rate: float | None
) -> LoadPoint:
    client = Client(url, request.timeout_s)
    try:
        if rate is not None:
            samples = await at_rate(client, payload, rate, request.seconds)
        else:
            samples = await at_once(client, payload, concurrency or 1, request.seconds)
    finally:
        client.close()
    return point(samples, request.seconds, concurrency=concurrency, rate=rate, streams=payload.streams)


async def _warm_up(url: SplitResult, payload: Payload, timeout_s: float) -> None:
    """Also tells at once whether the request is one that the server answers."""
    client = Client(url, timeout_s)
    try:
        first = await client.send(payload.request)
        if first.error:
            raise EnvironmentProblem(
                f"{url.geturl()} does not answer: {first.error}",
                expected="a server that is ready",
                remedy="start it, or wait until GET /ready says so",
            )
        if 400 <= first.status < 500 and first.status != 429:
            said = bytes(first.body[:300]).decode("utf-8", "replace")
            raise CallerMistake(
                f"{payload.path} answers {first.status}: {said}",
                expected="a request that it takes",
                remedy="--payload request.json, --token, or another path",
            )
        await at_once(client, payload, _WARM_UP, _WARM_UP_S)
    finally:
        client.close()
