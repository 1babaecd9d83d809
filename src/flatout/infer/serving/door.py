"""What every request passes: who it is from, how large it is, how long it takes; and how errors are told."""

import asyncio
import contextlib
import hmac
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from flatout.infer.serving.metrics import HTTP_SECONDS, Gauge, Histogram
from flatout.infer.serving.problems import Problem, leaving
from flatout.records.serving import ServeOrder

Endpoint = Callable[[Request], Awaitable[Response]]
# These are for those who look after the server, who may have no token.
_OPEN = ("/health", "/ready")
# Of a body that is too large, this much is read before the answer: a client that writes does not listen.
_DISCARDED_BYTES, _DISCARDED_S = 1 << 30, 5.0
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY")
GONE = 499
_QUIET_S, _LINES = 10.0, 100


class Door:
    """The outermost application."""

    def __init__(self, routes: dict[str, tuple[str, Endpoint]], order: ServeOrder) -> None:
        self._order = order
        self._routes = routes
        self.draining = False
        # Requests that were accepted, and had no answer when the time for it was over.
        self.given_up = 0
        # What is refused by its method and path alone; set by what is served.
        self.shed: Callable[[str, str], Problem | None] = lambda _method, _path: None
        self.active = 0
        self.durations = Histogram(
            "http_server_request_duration_seconds",
            "Duration of HTTP server requests.",
            HTTP_SECONDS,
            ("http_request_method", "http_response_status_code", "http_route"),
        )
        self.active_gauge = Gauge(
            "http_server_active_requests",
            "Number of active HTTP server requests.",
            lambda: float(self.active),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await _lifespan(receive, send)
            return
        began, status = time.perf_counter(), GONE
        self.active += 1

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self.draining:
                    message["headers"] = [*message.get("headers", []), (b"connection", b"close")]
            await send(message)

        try:
            # Under overload most requests end here: before anything of them is read.
            problem = _UNKNOWN_CALLER if self._refuses(scope) else self.shed(scope["method"], scope["path"])
            request = Request(scope, receive)
            answer = _response(problem) if problem is not None else await self._answer(request)
            try:
                await answer(scope, receive, noted)
            except (OSError, ClientDisconnect):
                pass  # a client that goes in the middle of its answer is no defect
            except asyncio.CancelledError:
                if not self.draining:
                    raise
                self.given_up += 1
            except Exception as error:  # noqa: BLE001 - it has begun: all that is left is to end it
                say(f"a defect: {type(error).__name__}: {error}")
        finally:
            self.active -= 1
            path = scope["path"] if scope["path"] in self._routes else "other"
            method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
            self.durations.see(time.perf_counter() - began, method, str(status), path)

    async def _answer(self, request: Request) -> Response:
        path, wanted = request.scope["path"], request.scope["method"]
        method, endpoint = self._routes.get(path, ("", None))
        try:
            if endpoint is None:
                raise _no_such(404, f"no {path[:200]!r} here")
            if wanted != method and (wanted, method) != ("HEAD", "GET"):
                raise _no_such(
                    405, f"{wanted} {path[:200]}", allow="GET, HEAD" if method == "GET" else method
                )
            return await endpoint(request)
        except Problem as problem:
            return _response(problem)
        except ClientDisconnect:
            return Response(status_code=GONE)
        except asyncio.CancelledError:
            if not self.draining:
                raise
            self.given_up += 1
            return _response(leaving())
        except Exception as error:  # noqa: BLE001 - ours: whoever asked hears that, and the server goes on
            say(f"a defect: {type(error).__name__}: {error}")
            return _response(
                Problem(
                    500, "a defect of the server", expected="this never to happen", remedy="tell its operator"
                )
            )

    def _refuses(self, scope: Scope) -> bool:
        if not self._order.token or scope["path"] in _OPEN:
            return False
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return not hmac.compare_digest(given, b"Bearer " + self._order.token.encode())


_UNKNOWN_CALLER = Problem(
    401, "no token, or another one", expected="the server's token", remedy="authorization: Bearer TOKEN"
)


async def read_body(request: Request, order: ServeOrder) -> bytes:
    """The whole body, if it is small enough and comes in time; raises Problem."""
    claimed = request.headers.get("content-length", "0")
    too_large = Problem(
        413,
        f"a body of more than {order.body_bytes} bytes",
        expected=f"at most {order.body_bytes} bytes",
        remedy="send less, or start the server with a larger --max-body",
        close=True,
    )
    if claimed.isdigit() and len(claimed) < 20 and int(claimed) <= order.body_bytes:
        parts, size, stream = [], 0, request.stream()
        try:
            async with asyncio.timeout(order.body_timeout_s):
                async for part in stream:
                    size += len(part)
                    if size > order.body_bytes:
                        break
                    parts.append(part)
                else:
                    return b"".join(parts)
        except TimeoutError:
            raise Problem(
                408,
                f"{size} bytes of a body in {order.body_timeout_s:g} s",
                expected="all of it in that time",
                remedy="send it faster",
                close=True,
            ) from None
    if request.headers.get("expect", "").lower() != "100-continue":
        await _discard(request)
    raise too_large


async def _discard(request: Request) -> None:
    """A client that still writes would see a broken pipe, and never the answer."""
    size = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DISCARDED_S):
            while size < _DISCARDED_BYTES:
                message = await request.receive()
                size += len(message.get("body", b""))
                if not message.get("more_body"):
                    return


_said: dict[str, float] = {}


def say(words: str) -> None:
    """A line in the log; the same one no more than once in some seconds."""
    now = time.monotonic()
    if now - _said.get(words, -_QUIET_S) < _QUIET_S:
        return
    if len(_said) >= _LINES:
        _said.clear()
    _said[words] = now
    sys.stderr.write(f"flatout serve: {words[:500]}\n")


def _response(problem: Problem) -> Response:
    body = problem.body()
    made = Response(body, status_code=problem.status)
    made.raw_headers = [*problem.headers(), (b"content-length", str(len(body)).encode())]
    return made


def _no_such(status: int, words: str, allow: str = "") -> Problem:
    return Problem(
        status,
        words,
        expected="a path and a method of /openapi.json",
        remedy="GET /openapi.json",
        allow=allow,
    )


@contextlib.contextmanager
def told_when_gone(request: Request, callback: Callable[[], Any]) -> Iterator[None]:
    """Meanwhile: a call of `callback` should the client go."""
    connection = request.scope["flatout.connection"]
    if connection.transport.is_closing():
        callback()
    connection.on_lost = callback
    try:
        yield
    finally:
        connection.on_lost = None


async def _lifespan(receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})
