"""The serving process: python -m flatout.infer.serving.process

Its order is the first line of its standard input: it may hold a token, and anybody can read command lines.

Listens first, so that it can be asked how it is doing; then loads, proves and measures the model in a
thread; then is ready. SIGTERM and SIGINT: nothing new is accepted, everything accepted is answered, and it
ends with 0.
"""

import asyncio
import contextlib
import dataclasses
import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from flatout.infer.failing import words_of
from flatout.infer.serving import metrics
from flatout.infer.serving.door import Door
from flatout.infer.serving.front import Front, listening
from flatout.infer.serving.problems import Problem
from flatout.infer.serving.wire import JSON
from flatout.records.errors import EXIT_DONE, EXIT_JOB, FlatoutError, JobFailed
from flatout.records.serving import ServeOrder, Serving

# After the signal, requests are taken for so long: those who send them must first learn that it ends.
_NOTICE_S = 0.5
# A thread with nothing left to do ends within this, also where the time for answers is over.
_LAST_LOOK_S = 0.6


class Service(Protocol):
    """What is served: its endpoints, its figures, its end."""

    def endpoints(self) -> dict[str, Any]:
        """By path."""

    def metrics(self) -> list[metrics.Metric]:
        """For Prometheus."""

    def document(self) -> dict[str, Any]:
        """The OpenAPI document."""

    def shed(self, method: str, path: str) -> Problem | None:
        """What is refused unread, by its method and path."""

    def stuck(self) -> str:
        """What hangs; empty where nothing does."""

    def drain(self, timeout_s: float) -> bool:
        """Accept nothing more, and answer everything; whether that was done."""


class Events:
    """Tells whoever started this process how it is doing, a JSON line each."""

    def __init__(self, fd: int | None) -> None:
        self._stream = None if fd is None else os.fdopen(fd, "wb", buffering=0)

    def tell(self, event: str, **more: Any) -> None:
        """One line; nobody to hear it is no failure."""
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.write(msgspec.json.encode({"event": event, **more}) + b"\n")


Prepare = Callable[[ServeOrder, Events, asyncio.AbstractEventLoop], tuple[Service, Serving]]


class Serve:
    """One server, from its first look at the model to its last answer."""

    def __init__(self, order: ServeOrder, events: Events, prepare: Prepare) -> None:
        self._order, self._events, self._prepare = order, events, prepare
        self._service: Service | None = None
        self._why_not = "the model is being loaded"
        paths = ("/v1/completions", "/v1/chat/completions") if order.llm else ("/predict",)
        routes: dict[str, Any] = {path: ("POST", self._passed_on(path)) for path in paths}
        if order.llm:
            routes["/v1/models"] = ("GET", self._passed_on("/v1/models"))
        looks = {
            "/health": self._health,
            "/ready": self._ready,
            "/metrics": self._metrics,
            "/openapi.json": self._document,
        }
        self._door = Door({**routes, **{path: ("GET", look) for path, look in looks.items()}}, order)

    async def run(self) -> int:
        """Serve until told to end; the exit code."""
        sock = listening(self._order.host, self._order.port)
        front = Front(self._door, self._order)
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, told.set)
        _when_left_alone(loop, told)
        serving = loop.create_task(front.serve([sock]))
        host = f"[{self._order.host}]" if ":" in self._order.host else self._order.host
        url = f"http://{host}:{sock.getsockname()[1]}"
        self._events.tell("listening", url=url)
        ready = loop.create_task(self._get_ready(url, loop))
        await asyncio.wait({ready, loop.create_task(told.wait())}, return_when=asyncio.FIRST_COMPLETED)
        if ready.done() and ready.exception() is not None:
            front.should_exit = front.force_exit = True
            await serving
            await ready
        await told.wait()
        return await self._end(front, serving, ready)

    async def _get_ready(self, url: str, loop: asyncio.AbstractEventLoop) -> None:
        service, about = await asyncio.to_thread(self._prepare, self._order, self._events, loop)
        self._service = service
        self._door.shed = service.shed
        self._events.tell("ready", serving=msgspec.to_builtins(dataclasses.replace(about, url=url)))

    async def _end(self, front: Front, serving: "asyncio.Task[None]", ready: "asyncio.Task[None]") -> int:
        # One end for all that follows: connections and the model do not get this time one after the other.
        clock = asyncio.get_running_loop().time
        front.ends_s = clock() + self._order.drain_s
        self._why_not = "the server is about to end"
        self._door.draining = True
        self._events.tell("draining")
        service, self._leaving = self._service, True
        if service is None:
            # It never took a request. A model that is being loaded cannot be told to stop.
            self._events.tell("ended", answered=True)
            os._exit(EXIT_DONE)
        ready.cancel()
        await asyncio.sleep(min(_NOTICE_S, self._order.drain_s))
        front.should_exit = True
        await serving
        left_s = max(_LAST_LOOK_S, front.ends_s - clock())
        answered = await asyncio.to_thread(service.drain, left_s) and not self._door.given_up
        self._events.tell("ended", answered=answered)
        return EXIT_DONE if answered else EXIT_JOB

    _leaving = False

    # What can be asked

    def _passed_on(self, path: str) -> Any:
        async def endpoint(request: Request) -> Response:
            found: Response = await self._known().endpoints()[path](request)
            return found

        return endpoint

    def _known(self) -> Service:
        if self._service is None:
            raise Problem(
                503,
                self._why_not,
                expected="a server that is ready",
                remedy="GET /ready tells when it is",
                retry_after_s=2.0,
            )
        return self._service

    async def _health(self, _request: Request) -> Response:
        words = self._service.stuck() if self._service is not None else ""
        if words:
            raise Problem(503, words, expected="an end of it", remedy="start the server again")
        return _json({"status": "ok"})

    async def _ready(self, _request: Request) -> Response:
        self._known()
        if self._leaving:
            raise Problem(
                503, self._why_not, expected="a server that stays", remedy="another one", retry_after_s=5.0
            )
        return _json({"status": "ready"})

    async def _metrics(self, _request: Request) -> Response:
        shown: list[metrics.Metric] = [self._door.durations, self._door.active_gauge, *_OWN]
        shown += self._service.metrics() if self._service is not None else []
        return Response(metrics.exposition(shown), headers={"content-type": metrics.CONTENT_TYPE})

    async def _document(self, _request: Request) -> Response:
        return _json(self._known().document())


def _json(body: Any) -> Response:
    return Response(msgspec.json.encode(body), media_type=JSON)


def _resident_bytes() -> float | None:
    import psutil

    return float(psutil.Process().memory_info().rss)


_OWN: list[metrics.Metric] = [
    metrics.Gauge("process_resident_memory_bytes", "Resident memory size in bytes.", _resident_bytes)
]


def _when_left_alone(loop: asyncio.AbstractEventLoop, told: asyncio.Event) -> None:
    """Whoever started this holds the other end of its input: with them gone, it ends in good order."""

    def listen() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(told.set)

    threading.Thread(target=listen, daemon=True, name="flatout-held").start()


def _prepared(order: ServeOrder, events: Events, loop: asyncio.AbstractEventLoop) -> tuple[Service, Serving]:
    """Torch is imported here, in the thread that needs it: the server has been listening for a while."""
    events.tell("stage", name="importing torch")
    room = importlib.import_module(f"flatout.infer.serving.{'texts' if order.llm else 'items'}")
    prepare: Prepare = room.prepare
    try:
        return prepare(order, events, loop)
    except FlatoutError:
        raise
    except (Exception, SystemExit) as error:
        raise JobFailed(
            f"{order.target} could not be made ready: {words_of(error)}",
            expected="a model that can be loaded and called here",
            remedy="the same with --debug shows where",
        ) from error


def main() -> int:
    """Serve as ordered; errors are told as events, and by the exit code."""
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=ServeOrder)
    events = Events(order.events_fd)
    try:
        import uvloop

        run: Any = uvloop.run
    except ImportError:
        run = asyncio.run
    try:
        code: int = run(Serve(order, events, _prepared).run())
    except FlatoutError as error:
        parts = {"received": error.received, "expected": error.expected, "remedy": error.remedy}
        events.tell(
            "error",
            kind=type(error).__name__,
            exit_code=error.exit_code,
            trace=traceback.format_exc(),
            **parts,
        )
        code = error.exit_code
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of models and libraries that never end must not keep the process.
    os._exit(code)


if __name__ == "__main__":
    main()
