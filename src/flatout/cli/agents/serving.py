"""Serves an agent over standard input and output, or over HTTP on this machine's own address."""

import hmac
import os
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import click
from mcp.server.stdio import stdio_server

from flatout.cli.agents.server import Agents, log_to_stderr
from flatout.cli.commands import EXIT_INTERRUPTED
from flatout.records.errors import EXIT_DONE, CallerMistake, EnvironmentProblem

_HOST = "127.0.0.1"
_SHORTEST_TOKEN = 16
_DRAIN_S = 2

Scope = dict[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]


def serve_stdio(agents: Agents) -> int:
    """Until standard input ends, or a signal comes."""
    log_to_stderr()
    if sys.stdin.isatty():
        click.echo("flatout mcp: an agent should start this; it waits for one. Ctrl-C ends it.", err=True)
    anyio.run(_over_stdio, agents)
    return EXIT_DONE


async def _over_stdio(agents: Agents) -> None:
    server = agents.server()
    async with anyio.create_task_group() as group:
        group.start_soon(_end_on_a_signal, agents)
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())
        group.cancel_scope.cancel()


async def _end_on_a_signal(agents: Agents) -> None:
    """A thread waits in a read of standard input that nothing can interrupt: end without it."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGHUP, signal.SIGINT) as signals:
        async for number in signals:
            with anyio.CancelScope(shield=True):
                await agents.children.end_all()
            sys.stderr.flush()
            os._exit(128 + number)


def serve_http(agents: Agents, port: int, token_file: Path | None) -> int:
    """Until a signal comes. Whoever is on this machine can reach the port, so a token is asked for."""
    import uvicorn

    log_to_stderr()
    token = _token(token_file)
    app = _guarded(agents.server().streamable_http_app(host=_HOST), token)
    listening = _bound(port)
    url = f"http://{_HOST}:{listening.getsockname()[1]}/mcp"
    click.echo(f"flatout mcp: serving {url}", err=True)
    if token_file is None:
        click.echo(f"flatout mcp: authorization: Bearer {token}", err=True)
    configuration = uvicorn.Config(
        app, log_config=None, lifespan="on", timeout_graceful_shutdown=_DRAIN_S, access_log=False
    )
    try:
        uvicorn.Server(configuration).run(sockets=[listening])
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return EXIT_DONE


def _bound(port: int) -> Any:
    import socket

    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((_HOST, port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise EnvironmentProblem(
            f"port {port} of {_HOST} cannot be taken: {error.strerror}",
            expected="a port that nobody listens on",
            remedy="another one, or --http 0 for any",
        ) from error
    return listening


def _token(file: Path | None) -> str:
    if file is None:
        return secrets.token_urlsafe(32)
    try:
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CallerMistake(
            f"the token cannot be read: {error}", expected="a file with one line", remedy="check the path"
        ) from error
    if len(token) < _SHORTEST_TOKEN or not token.isascii():
        raise CallerMistake(
            f"the token in {file} has {len(token)} characters",
            expected=f"{_SHORTEST_TOKEN} plain ones at least",
            remedy=f"openssl rand -hex 32 > {file}",
        )
    return token


def _guarded(app: App, token: str) -> App:
    """The same application, for those who bring the token."""
    wanted = f"Bearer {token}".encode()

    async def asked(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and not hmac.compare_digest(
            dict(scope["headers"]).get(b"authorization", b""), wanted
        ):
            headers = [(b"www-authenticate", b"Bearer"), (b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return
        await app(scope, receive, send)

    return asked
