"""The HTTP side: /metrics and /health, over keep-alive connections, with TLS and a token where wanted."""

import dataclasses
import errno
import hmac
import json
import socket
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from flatout.monitor.bearer import token_from
from flatout.monitor.export.address import DEFAULT_LISTEN, DEFAULT_PORT, Address
from flatout.monitor.export.exporter import Exporter
from flatout.monitor.export.negotiation import preferred_format, wants_gzip
from flatout.monitor.export.text import CONTENT_TYPES
from flatout.records.errors import CallerMistake, EnvironmentProblem

# A client that says nothing for so long is gone.
_SILENCE_S = 60.0
# Beyond these, connections are closed at once: each takes a thread.
_CONNECTIONS = 256
# Without a newer sample for so long, whoever takes them has stopped.
UNHEALTHY_AFTER_S = 60.0

_INDEX = b"""<!DOCTYPE html><html lang="en"><title>Flatout exporter</title><h1>Flatout exporter</h1>
<p><a href="metrics">metrics</a> <a href="health">health</a></p></html>
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Security:
    """Who may read, and whether others can listen in."""

    tls: ssl.SSLContext | None = None
    token: str = ""


class MetricsServer(ThreadingHTTPServer):
    """One thread a connection; scrapers keep theirs open."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    # Another exporter on the port must be an error, not two that share it.
    allow_reuse_port = False

    def __init__(self, address: Address, exporter: Exporter, security: Security) -> None:
        self.exporter = exporter
        self.security = security
        self._open = threading.BoundedSemaphore(_CONNECTIONS)
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        try:
            super().__init__((address.host, address.port), _Handler)
        except OSError as error:
            raise _cannot_listen(address, error) from error

    @property
    def url(self) -> str:
        """Where it can be scraped."""
        host, port = self.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"{'https' if self.security.tls else 'http'}://{shown}:{port}/metrics"

    def server_bind(self) -> None:
        """Without asking DNS for our own name, as HTTPServer would: that can take half a minute."""
        if self.allow_reuse_address:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def get_request(self) -> tuple[socket.socket, Any]:
        """A connection. The handshake is made in its own thread: a client that stalls stalls itself."""
        connection, client = super().get_request()
        if self.security.tls is not None:
            connection = self.security.tls.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        return connection, client

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own, while there are threads to be had."""
        if not self._open.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except Exception:  # no thread was to be had, so none gives its place back
            self._open.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """The whole life of a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, or spoke no TLS, is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    protocol_version = "HTTP/1.1"
    server_version = "flatout"
    sys_version = ""
    timeout = _SILENCE_S
    # One packet for head and body; without this, each answer waits for the client's acknowledgement.
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Answer a request."""
        routes: dict[str, Callable[[], None]] = {
            "/metrics": self._metrics,
            "/health": self._health,
            "/": lambda: self._send(200, "text/html; charset=utf-8", _INDEX),
        }
        found = routes.get(self.path.split("?", 1)[0])
        if found is None:
            self._send(404, "text/plain; charset=utf-8", b"there are /metrics and /health\n")
        else:
            found()

    do_HEAD = do_GET  # noqa: N815

    def _metrics(self) -> None:
        if not self._is_allowed():
            self._send(
                401,
                "text/plain; charset=utf-8",
                b"a bearer token is needed\n",
                {"WWW-Authenticate": 'Bearer realm="flatout"'},
            )
            return
        form = preferred_format(self.headers.get("Accept", ""))
        compressed = wants_gzip(self.headers.get("Accept-Encoding", ""))
        body = self.server.exporter.answer(form, compressed=compressed)
        headers = {"Vary": "Accept, Accept-Encoding", **({"Content-Encoding": "gzip"} if compressed else {})}
        self._send(200, CONTENT_TYPES[form], body, headers)

    def _health(self) -> None:
        age_s = self.server.exporter.sample_age_s()
        well = age_s < UNHEALTHY_AFTER_S
        told = {"status": "ok" if well else "no new samples", "sample_age_s": round(age_s, 3)}
        self._send(200 if well else 503, "application/json", json.dumps(told).encode() + b"\n")

    def _is_allowed(self) -> bool:
        wanted = self.server.security.token
        if not wanted:
            return True
        given = self.headers.get("Authorization", "")
        return hmac.compare_digest(given.encode("utf-8", "replace"), f"Bearer {wanted}".encode())

    def _send(self, code: int, kind: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Scrapes come every few seconds, for ever: nobody reads that."""


def security_from(
    *, tls_cert: Path | None = None, tls_key: Path | None = None, token_file: Path | None = None
) -> Security:
    """As the options say it."""
    if (tls_cert is None) != (tls_key is None):
        raise CallerMistake(
            f"{'--tls-key without --tls-cert' if tls_cert is None else '--tls-cert without --tls-key'}",
            expected="both, or neither",
            remedy="--tls-cert cert.pem --tls-key key.pem",
        )
    return Security(
        tls=tls_from(tls_cert, tls_key) if tls_cert is not None and tls_key is not None else None,
        token=token_from(token_file, remedy=f"openssl rand -hex 32 > {token_file}") if token_file else "",
    )


def tls_from(certificate: Path, key: Path) -> ssl.SSLContext:
    """A context for a server with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a password to give, a protected key must be an error, not a question at a terminal.
        context.load_cert_chain(certificate, key, password=lambda: b"")
    except (OSError, ssl.SSLError, ValueError) as error:
        raise CallerMistake(
            f"cannot use {certificate} with {key}: {error}",
            expected="a certificate and its key as PEM files, without a password",
            remedy="openssl req -x509 -newkey rsa:2048 -nodes -days 365 -subj /CN=$(hostname) "
            "-keyout key.pem -out cert.pem",
        ) from error
    return context


def _cannot_listen(address: Address, error: OSError) -> EnvironmentProblem:
    if error.errno == errno.EADDRINUSE:
        remedy = (
            f"--listen {address.shown_host}:{address.port + 1}   # who has the other: "
            f"ss -ltnp 'sport = :{address.port}'"
        )
    elif error.errno == errno.EACCES:
        remedy = f"a port from 1024 up: --listen {address.shown_host}:{DEFAULT_PORT}"
    else:
        remedy = f"--listen {DEFAULT_LISTEN}, or an address that `ip address` shows"
    return EnvironmentProblem(
        f"cannot listen on {address}: {error.strerror or error}",
        expected="a free port on an address of this machine",
        remedy=remedy,
    )
