"""A real client of the protocol, a real server, and what they leave behind."""

import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import psutil
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.e2e.jobs import Place, processes_with


@contextlib.asynccontextmanager
async def server_in(place: Place, *options: str) -> AsyncIterator[Client]:
    """A client of `flatout mcp` in the place's work folder."""
    words = ["-m", "flatout", "mcp", "--root", str(place.work), *options]
    started = StdioServerParameters(
        command=sys.executable, args=words, env=place.environment(), cwd=place.work
    )
    async with Client(stdio_client(started)) as client:
        yield client


def server_pid(place: Place) -> int:
    """The one process of ours that serves."""
    [pid] = [pid for pid, words in processes_with(place.token).items() if words[2:4] == ["flatout", "mcp"]]
    return pid


def others(place: Place) -> dict[int, list[str]]:
    """All processes but the server."""
    return {
        pid: words for pid, words in processes_with(place.token).items() if words[2:4] != ["flatout", "mcp"]
    }


def wait_until(seen: Callable[[], Any], what: str, within_s: float = 60.0) -> None:
    """Until it is so; the test fails when it takes too long."""
    deadline = time.monotonic() + within_s
    while not seen():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def is_training(place: Place, script: str) -> bool:
    """Whether the script's own process is there, below a command of ours."""
    return any(
        words[-1:] == [script] and "flatout" not in words
        for pid, words in others(place).items()
        if psutil.pid_exists(pid)
    )
