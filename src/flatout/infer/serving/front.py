"""Connections: slow and idle ones are ended, and at the end each that brought a request gets its answer."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from flatout.infer.serving.door import Door
from flatout.records.errors import CallerMistake, EnvironmentProblem
from flatout.records.serving import ServeOrder

_KEEP_ALIVE_S = 30
# Clients that have just connected, or been told to go, get this long to say what they want.
_LAST_WORD_S = 0.5
_BACKLOG = 2048
# uvicorn lets this pass before it begins to wait; and it waits no shorter than that here.
_PAUSE_S, _LEAST_WAIT_S = 0.1, 0.05
_JOINED_BYTES = 64 << 10


class _Joined:
    """A transport whose writes of one turn of the loop leave together: head and body are one packet."""

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        """Soon; at once where it is much, so that the transport can say when it is too much."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size > _JOINED_BYTES:
            self._flush()

    def close(self) -> None:
        """After what was written."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        parts, self._parts, self._size = self._parts, [], 0
        if parts:
            self._transport.write(b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Connection(HttpToolsProtocol):
    """A client's; one that does not get to the end of its headers in time is let go."""

    header_timeout_s = 10.0

    def connection_made(self, transport: Any) -> None:
        """The clock starts with the connection."""
        super().connection_made(_Joined(transport, self.loop))  # type: ignore[arg-type]
        self._late: asyncio.TimerHandle | None = None
        self._in_headers = True
        # Whoever answers a request of this connection may want to hear that nobody listens any more.
        self.on_lost: Callable[[], Any] | None = None
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        """Most headers come in one piece: a clock is for the others."""
        super().data_received(data)
        if self._in_headers and self._late is None:
            self._expect_headers()

    def on_message_begin(self) -> None:
        """A further request: its headers have as long."""
        super().on_message_begin()
        self._in_headers = True

    def on_headers_complete(self) -> None:
        """They are here."""
        self._in_headers = False
        self._stop_clock()
        self.scope["flatout.connection"] = self  # type: ignore[typeddict-unknown-key]
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is there to be late."""
        self._stop_clock()
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()

    def shutdown(self) -> None:
        """The server is about to end: what is in its way here is still answered."""
        if self.cycle is None or self.cycle.response_complete:
            self.loop.call_later(_LAST_WORD_S, self._end_if_idle)
        else:
            self.cycle.keep_alive = False

    def _end_if_idle(self) -> None:
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    def _expect_headers(self) -> None:
        self._late = self.loop.call_later(self.header_timeout_s, self._give_up)

    def _stop_clock(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


class Front(uvicorn.Server):
    """uvicorn, told by us when to end: a signal is no failure here."""

    def __init__(self, door: Door, order: ServeOrder) -> None:
        # A class of its own, as uvicorn makes the objects.
        protocol = type("LimitedConnection", (Connection,), {"header_timeout_s": order.header_timeout_s})
        super().__init__(
            uvicorn.Config(
                door,
                http=protocol,
                ws="none",
                lifespan="off",
                access_log=False,
                log_level="error",
                log_config=None,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=order.connections,
                timeout_keep_alive=_KEEP_ALIVE_S,
                backlog=_BACKLOG,
            )
        )
        # The moment, by the loop's clock, at which those without an answer are given up.
        self.ends_s: float | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None: the process listens itself."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """No new connection, and an end of the present ones: by their answers, or when their time is over."""
        if self.ends_s is not None:
            left_s = self.ends_s - asyncio.get_running_loop().time() - _PAUSE_S
            # uvicorn says whole seconds, and passes on whatever it is given.
            self.config.timeout_graceful_shutdown = max(_LEAST_WAIT_S, left_s)  # type: ignore[assignment]
        await super().shutdown(sockets)
        # Those who were given up are told so, which needs a turn of the loop.
        given_up = list(self.server_state.tasks)
        if given_up:
            await asyncio.wait(given_up, timeout=_LAST_WORD_S)


def listening(host: str, port: int) -> socket.socket:
    """A socket that is ours, before anything slow begins; raises CallerMistake or EnvironmentProblem."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise CallerMistake(
            f"--host {host}: {error}", expected="an address of this machine", remedy="--host 127.0.0.1"
        ) from error
    family, kind, protocol, _, address = found[0]
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise EnvironmentProblem(
            f"port {port} of {host} cannot be had: {error.strerror or error}",
            expected="a port that nobody listens on",
            remedy="--port 0 takes any free one",
        ) from error
    sock.setblocking(False)
    return sock
