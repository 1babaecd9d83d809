"""`flatout serve`: real processes, sockets and signals; every kind of client."""

import contextlib
import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.e2e.conftest import Run
from tests.e2e.servers import Server, served

MODEL = textwrap.dedent("""
    import os, time
    import torch

    class Odd(torch.nn.Module):
        '''Says twice; refuses 13, breaks at 14, sleeps at 15, runs out of memory with three of 16.

        With 18 it waits as long as somebody holds it.
        '''

        def forward(self, x):
            first = x[:, 0]
            if (first == 13).any():
                raise ValueError("13 is not for me")
            if (first == 14).any():
                raise RuntimeError("secret words")
            if (first == 15).any():
                time.sleep(0.5)
            while (first == 18).any() and os.path.exists("hold"):
                time.sleep(0.01)
            if (first == 16).sum() > 2:
                raise torch.OutOfMemoryError("out of memory")
            return torch.where((x == 17), float("nan"), x * 2)

    def make():
        return Odd(), {"x": torch.zeros(1, 4)}

    def leaves():
        raise SystemExit("no licence")
""")
HEAD = b"POST /predict HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
SMALL = ("--max-body", "1MiB", "--timeout", "20s")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "odd_model.py").write_text(MODEL)
    # Batches and a queue that do not depend on how fast this machine is.
    with served(folder, "odd_model:make", "--max-batch", "8", "--queue", "64", *SMALL) as one:
        yield one
        assert one.predict(1)[0] == 200, "after all this, it still answers"


def error(body: bytes) -> Any:
    told = json.loads(body)["error"]
    assert told["received"]
    assert told["expected"]
    assert told["remedy"]
    return told


def test_it_says_what_it_serves_and_answers(server: Server) -> None:
    assert server.about["schema"] == "flatout.serve/1"
    assert server.about["inputs"] == ["x:float32[4]"]
    assert server.about["sizing"]["reason"]
    assert server.predict(3) == (200, {"outputs": {"output": [6.0, 0.0, 0.0, 0.0]}})
    assert server.ask("GET", "/health")[0] == server.ask("GET", "/ready")[0] == 200


def test_its_own_example_is_answered(server: Server) -> None:
    document = json.loads(server.ask("GET", "/openapi.json")[2])
    example = document["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]["example"]
    assert server.ask("POST", "/predict", example)[0] == 200


def test_tensors_travel_as_files_too(server: Server) -> None:
    stream = io.BytesIO()
    np.save(stream, np.array([1, 2, 3, 4], np.float32))
    kinds = {"content-type": "application/x-npy", "accept": "application/x-npy"}
    status, headers, body = server.ask("POST", "/predict", stream.getvalue(), kinds)
    assert (status, headers["content-type"]) == (200, "application/x-npy")
    assert np.load(io.BytesIO(body)).tolist() == [2, 4, 6, 8]


def test_each_item_of_a_bad_batch_gets_its_own_answer(server: Server) -> None:
    found: dict[int, tuple[int, Any]] = {}
    # The first holds the model while the others gather behind it.
    values = [15, 1, 13, 2, 14, 16, 16, 16, 17]

    def ask(place: int) -> None:
        found[place] = server.predict(values[place])

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(len(values))]
    threads[0].start()
    server.wait_for("flatout_serve_queue_items", 0)
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[place][0] for place in range(len(values))] == [200, 200, 422, 200, 500, 200, 200, 200, 200]
    assert found[3][1]["outputs"]["output"][0] == 4
    assert "13 is not for me" in found[2][1]["error"]["received"]
    assert "secret" not in json.dumps(found[4][1])
    assert found[8][1]["nulls"]


def test_figures_are_under_the_names_of_opentelemetry(server: Server) -> None:
    server.predict(1)
    text = server.ask("GET", "/metrics")[2].decode()
    labels = '{http_request_method="POST",http_response_status_code="200"'
    wanted = f"http_server_request_duration_seconds_count{labels}"
    assert wanted in text
    assert "# TYPE http_server_active_requests gauge" in text
    assert "process_resident_memory_bytes" in text
    from prometheus_client.parser import text_string_to_metric_families

    assert {"flatout_serve_batch_items", "flatout_serve_items"} <= {
        family.name for family in text_string_to_metric_families(text)
    }


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"inputs": {"x": [1, 2, 3]}}', 400),
        (b'{"inputs": {"x": [1, 2, 3, "4"]}}', 400),
        (b'{"inputs": {"x": [1, 2, 3, NaN]}}', 400),
        (b'{"inputs": {"x": [1, 2, 3, 4]', 400),
        (b'{"inputs": {"x": [1, 2, 3, 4], "y": [1]}}', 400),
        (b"\xff\xfe{}", 400),
        (b"", 400),
        (b"[" * 100_000, 400),
        (b" " * (2 << 20), 413),
    ],
)
def test_bad_bodies_are_told_what_is_wrong(server: Server, body: bytes, status: int) -> None:
    found, _, answer = server.ask("POST", "/predict", body, {"content-type": "application/json"})
    assert found == status
    error(answer)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/predict", 405),
        ("POST", "/ready", 405),
        ("GET", "/", 404),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/%2e%2e/%2e%2e/etc/passwd", 404),
        ("GET", "//predict", 404),
        ("GET", "/ready/", 404),
        ("GET", "/%00", 404),
        ("GET", "/%ff%fe", 404),
        ("POST", "/predict?x=1", 415),
    ],
)
def test_odd_paths_and_methods_lead_nowhere(server: Server, method: str, path: str, status: int) -> None:
    found, _, answer = server.ask(method, path)
    assert found == status
    error(answer)


@pytest.mark.parametrize("mb", [32, pytest.param(100, marks=pytest.mark.full)])
def test_a_huge_body_is_refused_and_the_client_hears_of_it(server: Server, mb: int) -> None:
    """More than lies in all buffers between the two; a busy server reads 32 MB in its five seconds."""
    status, headers, body = server.ask(
        "POST", "/predict", b"x" * (mb << 20), {"content-type": "application/json"}
    )
    assert status == 413
    assert headers["connection"] == "close"
    error(body)


def test_a_body_without_an_announced_length_is_counted(server: Server) -> None:
    with server.raw() as sock:
        sock.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        for _ in range(20):
            sock.sendall(chunk)
        sock.sendall(b"0\r\n\r\n")
        assert sock.recv(4096).startswith(b"HTTP/1.1 413")


def test_nonsense_in_place_of_http_is_answered_with_400(server: Server) -> None:
    for words in (
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /predict HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
    ):
        with server.raw() as sock:
            sock.sendall(words)
            sock.settimeout(60)
            assert sock.recv(4096)[:12] in (b"HTTP/1.1 400", b"")


def test_a_client_that_goes_is_dropped_from_the_queue(server: Server) -> None:
    before = server.metric('flatout_serve_items_total{outcome="left"}')
    computed = threading.Thread(target=server.predict, args=(18,))
    with server.holding():
        computed.start()
        server.wait_for("http_server_active_requests", 2)  # this one, and the question itself
        server.wait_for("flatout_serve_queue_items", 0)
        sock = server.raw()
        body = b'{"inputs": {"x": [1, 2, 3, 4]}}'
        sock.sendall(HEAD + b"content-length: %d\r\n\r\n%s" % (len(body), body))
        server.wait_for("flatout_serve_queue_items", 1)
        sock.close()
        server.wait_for('flatout_serve_items_total{outcome="left"}', before + 1)
        assert server.metric("flatout_serve_queue_items") == 0
    computed.join()


def test_too_many_are_refused_with_a_time_to_come_back_and_nobody_is_lost(tmp_path: Path) -> None:
    (tmp_path / "odd_model.py").write_text(MODEL)
    arguments = ("odd_model:make", "--max-batch", "1", "--queue", "2", "--timeout", "1s", "--pad", "x=-inf")
    with served(tmp_path, *arguments, FLATOUT_SERVE_TOKEN="sesame") as server:
        [serving] = psutil.Process(server.process.pid).children()
        assert "flatout.infer.serving.process" in serving.cmdline()
        assert "sesame" not in " ".join(serving.cmdline()), "anybody's ps shows it"
        assert server.ask("GET", "/health")[0] == 200
        assert server.ask("GET", "/metrics")[0] == 401
        status, headers, body = server.ask("POST", "/predict", {"inputs": {"x": [1, 2, 3, 4]}})
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        error(body)
        found: list[tuple[int, dict[str, str]]] = []

        def ask() -> None:
            inputs = {"inputs": {"x": [15, 0, 0, 0]}}
            status, headers, _ = server.ask("POST", "/predict", inputs, {"authorization": "Bearer sesame"})
            found.append((status, headers))

        threads = [threading.Thread(target=ask) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 12
        assert {status for status, _ in found} <= {200, 429, 504}
        refused = [headers for status, headers in found if status == 429]
        assert refused
        assert all(
            int(headers["retry-after"]) >= 1 and int(headers["retry-after-ms"]) >= 1 for headers in refused
        )
        assert server.end() == 0


def test_slow_clients_hold_nothing_but_their_own_connection(tmp_path: Path) -> None:
    """Half a header, half a body: both are let go in time, and others are answered meanwhile."""
    (tmp_path / "odd_model.py").write_text(MODEL)
    order = {
        "target": "odd_model:make",
        "port": 0,
        "header_timeout_s": 1.0,
        "body_timeout_s": 1.0,
        "events_fd": 1,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "flatout.infer.serving.process"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(order) + "\n")
    process.stdin.flush()
    try:
        told: list[Any] = []
        for line in process.stdout:
            told.append(json.loads(line))
            if told[-1]["event"] == "ready":
                break
        port = int(told[-1]["serving"]["url"].rpartition(":")[2])
        heads = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        for sock in heads:
            sock.sendall(b"POST /predict HTTP/1.1\r\nhost: a\r\nx-slow: ")
        body = socket.create_connection(("127.0.0.1", port))
        body.sendall(HEAD + b"content-length: 999\r\n\r\n{")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/ready")
        assert connection.getresponse().status == 200
        body.settimeout(60)
        assert body.recv(4096).startswith(b"HTTP/1.1 408")
        for sock in heads:
            sock.settimeout(60)
            with contextlib.suppress(ConnectionResetError):  # where we were late, and wrote afterwards
                assert sock.recv(4096) == b""
        for sock in (*heads, body):
            sock.close()
        connection.close()
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        process.stdout.close()
        process.stdin.close()


def test_after_sigterm_everything_accepted_is_answered_and_it_ends_with_0(tmp_path: Path) -> None:
    (tmp_path / "odd_model.py").write_text(MODEL)
    server = Server(tmp_path, "odd_model:make", "--max-batch", "2", "--queue", "64")
    found: list[int] = []

    def ask() -> None:
        found.append(server.predict(18)[0])

    threads = [threading.Thread(target=ask) for _ in range(10)]
    with server.holding():
        for thread in threads:
            thread.start()
        server.wait_for("http_server_active_requests", 11)
        server.process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join()
    assert found == [200] * 10
    assert server.end() == 0
    with pytest.raises(ConnectionRefusedError):
        server.raw()


def test_after_the_time_to_drain_the_rest_is_told_so_and_it_ends_with_4(tmp_path: Path) -> None:
    (tmp_path / "odd_model.py").write_text(MODEL)
    server = Server(tmp_path, "odd_model:make", "--max-batch", "1", "--queue", "64", "--drain", "2s")
    found: list[tuple[int, Any]] = []
    threads = [threading.Thread(target=lambda: found.append(server.predict(18))) for _ in range(3)]
    with server.holding():
        for thread in threads:
            thread.start()
        server.wait_for("http_server_active_requests", 4)
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 4
        lasted_s = time.monotonic() - began
    for thread in threads:
        thread.join()
    assert 1.5 < lasted_s < 3.8, "once the time given, not twice"
    assert [status for status, _ in found] == [503] * 3
    assert all("about to end" in error(json.dumps(body).encode())["received"] for _, body in found)
    assert "Traceback" not in server.log()
    server.end()


def test_a_server_whose_starter_is_killed_ends_by_itself(tmp_path: Path) -> None:
    (tmp_path / "odd_model.py").write_text(MODEL)
    server = Server(tmp_path, "odd_model:make")
    server.process.kill()
    server.end()
    is_there = True
    for _ in range(600):
        try:
            server.raw().close()
        except ConnectionRefusedError:
            is_there = False
            break
        time.sleep(0.1)
    assert not is_there


def test_mistakes_are_told_before_anything_is_served(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "odd_model.py").write_text(MODEL)
    for arguments, code, words in (
        ((), 2, "nothing to serve"),
        (("odd_model:make", "--llm", "x"), 2, "two things to serve"),
        (("odd_model:mak",), 2, "did you mean odd_model:make?"),
        (("--llm", "nowhere"), 2, "no config.json"),
        (("odd_model:make", "--dry-run"), 2, "--engine vllm"),
        (("x.pt2",), 2, "x.pt2 does not exist"),
        (("odd_model:make", "--input", "x:float32[3"), 2, "describes no tensor"),
        (("odd_model:make", "--device", "gpu"), 2, "cuda, cuda:1 or cpu"),
        (("odd_model:make", "--device", "cuda:77"), 2, "--device cuda:77, and torch finds"),
        (("odd_model:make", "--input", "x:float32[4]", "--pad", "y=0"), 2, "unknown input 'y'"),
        (("odd_model:make", "--pad", "y=0"), 2, "unknown input 'y'"),
        (("odd_model:leaves",), 4, "the factory raised SystemExit: no licence"),
    ):
        found = flatout("serve", "--port", "0", *arguments)
        assert found.returncode == code, found.stderr
        assert words in found.stderr
        assert "Traceback" not in found.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found = flatout("serve", "odd_model:make", "--port", str(taken.getsockname()[1]))
        assert found.returncode == 3
        assert "cannot be had" in found.stderr


@pytest.mark.full
def test_the_description_holds_under_schemathesis(tmp_path: Path) -> None:
    pytest.importorskip("schemathesis", reason="schemathesis is not installed: pip install schemathesis")
    (tmp_path / "odd_model.py").write_text(MODEL)
    with served(tmp_path, "odd_model:make", "--queue", "64") as server:
        found = subprocess.run(
            [
                str(Path(sys.executable).parent / "schemathesis"),
                "run",
                f"http://127.0.0.1:{server.port}/openapi.json",
                "--max-examples=50",
                "--seed=1",
                "--no-color",
            ],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONWARNINGS": ""},
            timeout=250,
        )
        assert found.returncode == 0, found.stdout[-4000:] + found.stderr[-1000:]
