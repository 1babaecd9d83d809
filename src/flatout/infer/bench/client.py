"""A lean HTTP/1.1 client: one connection, one request at a time, with the times that matter.

Load must cost less than what it loads: what general clients do besides would be measured as the server's.
"""

import asyncio
import dataclasses
import ssl
import time
from typing import Any
from urllib.parse import SplitResult

import httptools

_OPENING_S = 10.0
# A server may close what was idle for longer, in the very moment in which the next request is sent.
_IDLE_S = 4.0


@dataclasses.dataclass(slots=True)
class Exchange:
    """One request's answer, with moments of the monotonic clock."""

    status: int = 0
    # What went wrong with the connection; empty where nothing did.
    error: str = ""
    ended_s: float = 0.0
    body: bytearray = dataclasses.field(default_factory=bytearray)
    # When pieces of the body came, and how many bytes there were then.
    pieces: list[tuple[float, int]] = dataclasses.field(default_factory=list)
    keep: bool = True


class Connection(asyncio.Protocol):
    """To one server."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._exchange: Exchange | None = None
        self._done: asyncio.Future[None] | None = None
        self.closed = False

    # asyncio

    def connection_made(self, transport: Any) -> None:
        """It is open."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Some of an answer."""
        if self._exchange is None:
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._finish(f"no HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side is gone."""
        self.closed = True
        if self._exchange is not None:
            self._finish(type(exc).__name__ if exc is not None else "closed without an answer")

    # httptools

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if self._exchange is not None:
            self._exchange.body += body
            self._exchange.pieces.append((time.monotonic(), len(self._exchange.body)))

    def on_message_complete(self) -> None:
        """The answer is whole."""
        if self._exchange is not None:
            self._exchange.status = self._parser.get_status_code()
            self._exchange.keep = self._parser.should_keep_alive()
            self._finish("")

    # Requests

    async def exchange(self, request: bytes, timeout_s: float) -> Exchange:
        """Send these bytes, and wait for the answer to them."""
        loop = asyncio.get_running_loop()
        found = self._exchange = Exchange()
        done = self._done = loop.create_future()
        self._parser = httptools.HttpResponseParser(self)
        if self.closed or self._transport is None:
            self._finish("closed before it was sent")
            return found
        self._transport.write(request)
        late = loop.call_later(timeout_s, self._finish, "no answer in time")
        try:
            await done
        finally:
            late.cancel()
            if self._exchange is found:
                self._finish("left")
            if found.error or not found.keep:
                self.close()
        return found

    def close(self) -> None:
        """No further request."""
        self.closed = True
        if self._transport is not None:
            self._transport.close()

    def _finish(self, error: str) -> None:
        found, self._exchange = self._exchange, None
        if found is not None and self._done is not None:
            found.error, found.ended_s = error, time.monotonic()
            if not self._done.done():
                self._done.set_result(None)


class Client:
    """Connections to a server, as many as are in use at once."""

    def __init__(self, url: SplitResult, timeout_s: float) -> None:
        self._host, self._timeout_s = url.hostname or "", timeout_s
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._ssl = ssl.create_default_context() if url.scheme == "https" else None
        # With the moment since which they are idle.
        self._idle: list[tuple[float, Connection]] = []

    async def send(self, request: bytes) -> Exchange:
        """On a connection that is free, or a new one."""
        connection = await self._one()
        if isinstance(connection, str):
            return Exchange(error=connection, ended_s=time.monotonic())
        found = await connection.exchange(request, self._timeout_s)
        if not connection.closed:
            self._idle.append((found.ended_s, connection))
        return found

    def close(self) -> None:
        """All of them."""
        for _, connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _one(self) -> Connection | str:
        now = time.monotonic()
        while self._idle:
            since, connection = self._idle.pop()
            if not connection.closed and now - since < _IDLE_S:
                return connection
            connection.close()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_OPENING_S):
                _, made = await loop.create_connection(Connection, self._host, self._port, ssl=self._ssl)
        except (OSError, TimeoutError) as error:
            return f"cannot connect: {type(error).__name__}"
        return made


def request_bytes(url: SplitResult, path: str, body: bytes | None, headers: dict[str, str]) -> bytes:
    """A request as it goes over the wire; GET where it has no body."""
    host = url.netloc.rpartition("@")[2]
    lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", f"host: {host}", "accept: */*"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [] if body is None else [f"content-length: {len(body)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b"")
