"""What is no address, and loads of which nothing is sent."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from flatout.infer.bench.running import BenchRequest, run_bench
from flatout.infer.bench.summing import knee, point
from flatout.records.errors import CallerMistake, EnvironmentProblem


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:99999",
        "localhost:x",
        "http://[::1",
        "http://localhost:0",
        "http://a..b",
        f"http://{'a' * 80}",
        "ftp://localhost",
        "//",
    ],
)
def test_what_is_no_address_is_told(url: str) -> None:
    with pytest.raises(CallerMistake, match="is no address of a server"):
        run_bench(BenchRequest(url=url), lambda *_: None)


def test_an_address_where_nobody_listens_is_not_the_callers_mistake() -> None:
    with pytest.raises(EnvironmentProblem, match="does not answer"):
        run_bench(BenchRequest(url="127.0.0.1:9/predict"), lambda *_: None)


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/predict"
    server.shutdown()
    server.server_close()


def test_a_bench_that_sends_nothing_is_no_success(url: str, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text("{}")
    words = (url, "--payload", "p.json", "--rate", "0.001", "--duration", "100ms")
    found = subprocess.run(
        [sys.executable, "-m", "flatout", "bench", "--json", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 1, found.stderr
    assert "nothing was sent with 0.001 requests a second" in found.stderr
    bench = json.loads(found.stdout)
    assert (bench["points"][0]["sent"], bench["knee"]) == (0, None)
    assert "nothing was sent" in bench["reason"]


def test_a_load_of_which_nothing_was_due_has_no_knee() -> None:
    nothing = point([], 1.0, concurrency=None, rate=0.5, streams=False)
    assert knee([nothing]) == (None, "nothing was sent: no request was due in that time")
