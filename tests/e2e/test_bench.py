"""`flatout bench` against a server of a few lines, whose pauses are known."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from tests.e2e.conftest import Run
from tests.pages import parsed


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    pause_s: ClassVar[float] = 0.02
    lock: ClassVar[threading.Lock] = threading.Lock()

    def do_GET(self) -> None:
        example = {"requestBody": {"content": {"application/json": {"example": {"a": 1}}}}}
        self._say(200, {"paths": {"/work": {"post": example}}})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/busy":
            self._say(429, {})
        elif self.path == "/strict" and self.headers["authorization"] != "Bearer key":
            self._say(401, {"error": "who are you?"})
        else:
            with self.lock:  # one at a time: its rate is known
                time.sleep(self.pause_s)
            self._say(200, {})

    def _say(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    class Server(ThreadingHTTPServer):
        request_queue_size = 128
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_the_example_of_the_server_is_sent_and_the_knee_found(flatout: Run, url: str, tmp_path: Path) -> None:
    page = tmp_path / "load.html"
    found = flatout("bench", "--json", url, "--concurrency", "1,4", "--duration", "1s", "--html", str(page))
    assert found.returncode == 0, found.stderr
    bench = json.loads(found.stdout)
    assert (bench["schema"], bench["path"], bench["loop"]) == ("flatout.bench/1", "/work", "closed")
    one, four = bench["points"]
    # Whoever comes four at a time waits for the three others: Little's law.
    assert four["answered_per_s"] < 1000 * 4 / four["latency_ms"]["mean"] * 1.5
    assert four["latency_ms"]["p50"] > 2 * Handler.pause_s * 1000 > one["latency_ms"]["p50"] * 0.5
    assert bench["knee"] in (0, 1)
    assert any(tag == "polyline" for tag, _ in parsed(page.read_text()).tags)


@pytest.mark.full
def test_a_rate_beyond_what_is_possible_shows_as_waiting(flatout: Run, url: str) -> None:
    found = flatout("bench", "--json", url, "--rate", "100", "--duration", "2s")
    (point,) = json.loads(found.stdout)["points"]
    # Twice as much as it can do, for two seconds: the last waited for about as long again.
    assert point["latency_ms"]["max"] > 1000
    assert point["seconds"] > 3
    assert point["answered"] == point["sent"] > 150


def test_terminal_output_fits_narrow_ones(flatout: Run, url: str, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text("{}")
    found = flatout(
        "bench", f"{url}/busy", "--payload", "p.json", "--concurrency", "2", "--duration", "1s", COLUMNS="40"
    )
    assert found.returncode == 1
    assert "nothing was answered" in found.stdout
    assert "status 429" in found.stdout
    assert max(map(len, found.stdout.splitlines())) <= 40


def test_mistakes_are_told(flatout: Run, url: str, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text("{}")
    for arguments, code, words in (
        (("http://127.0.0.1:9",), 3, "does not answer"),
        (("ftp://x",), 2, "no address of a server"),
        ((f"{url}/strict", "--payload", "p.json"), 2, "answers 401"),
        ((f"{url}/other",), 2, "has no example for /other"),
        ((url, "--rate", "1", "--concurrency", "1"), 2, "one of both"),
        ((url, "--rate", "x"), 2, "numbers above 0"),
        ((f"{url}/work", "--payload", "none.json"), 2, "cannot be read"),
    ):
        found = flatout("bench", *arguments)
        assert found.returncode == code, found.stderr
        assert words in found.stderr
