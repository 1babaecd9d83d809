"""A real server in a real process, and plain sockets to it."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Server:
    """`flatout serve`, ready."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "flatout", "serve", "--json", "--port", "0", *arguments],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **environment},
            )
        self.folder = folder
        self._log = folder / "log"
        self.about = self._document()
        self.port = int(self.about["url"].rpartition(":")[2])

    def _document(self) -> Any:
        assert self.process.stdout is not None
        text = b""
        while line := self.process.stdout.readline():
            text += line
            if line == b"}\n":
                return json.loads(text)
        raise AssertionError(f"it never was ready: {self.log()}")

    def log(self) -> str:
        return self._log.read_text()

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        kind = {"content-type": "application/json"} if isinstance(body, dict) else {}
        data = json.dumps(body) if isinstance(body, dict) else body
        with contextlib.closing(connection):
            connection.request(method, path, data, {**kind, **(headers or {})})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, found, answer.read()

    def predict(self, value: float) -> tuple[int, Any]:
        status, _, body = self.ask("POST", "/predict", {"inputs": {"x": [value, 0, 0, 0]}})
        return status, json.loads(body)

    def raw(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def metric(self, name: str) -> float:
        text = self.ask("GET", "/metrics")[2].decode()
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))

    def wait_for(self, name: str, value: float) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if self.metric(name) == value:
                return
            time.sleep(0.05)
        raise AssertionError(f"{name} is {self.metric(name)}, not {value}")

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """A model that looks for this file waits as long as it is there."""
        (self.folder / "hold").touch()
        try:
            yield
        finally:
            (self.folder / "hold").unlink()

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code


@contextlib.contextmanager
def served(folder: Path, *arguments: str, **environment: str) -> Iterator[Server]:
    server = Server(folder, *arguments, **environment)
    try:
        yield server
    finally:
        server.end()
