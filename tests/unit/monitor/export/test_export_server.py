"""The endpoint: formats, keep-alive, TLS, tokens, ports; nothing that a client sends makes it a 500."""

import contextlib
import gzip
import http.client
import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flatout.monitor.bearer import token_from
from flatout.monitor.export.address import DEFAULT_LISTEN, Address, parse_address
from flatout.monitor.export.exporter import Exporter
from flatout.monitor.export.negotiation import preferred_format, wants_gzip
from flatout.monitor.export.running import exposure, sent_in_the_clear
from flatout.monitor.export.server import MetricsServer, Security, security_from
from flatout.records.errors import CallerMistake, EnvironmentProblem
from flatout.records.watching import Frame
from tests.unit.monitor.export.frames import frame_of, fresh, gpu, job

# As Prometheus 2 sends it.
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
LOOPBACK = Address("127.0.0.1", 0)


@contextlib.contextmanager
def serving(exporter: Exporter, security: Security = Security()) -> Iterator[MetricsServer]:
    with MetricsServer(LOOPBACK, exporter, security) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(60)


def steady(frame: Frame | None = None) -> Exporter:
    whole = frame or frame_of(gpu(), live_jobs=(job(),))
    return Exporter(lambda: fresh(whole))


def get(server: MetricsServer, path: str = "/metrics", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request(
        "GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def test_prometheus_gets_openmetrics_and_a_browser_plain_text() -> None:
    with serving(steady()) as server:
        code, headers, body = get(server, Accept=PROMETHEUS)
        assert (code, headers["Content-Type"][:34]) == (200, "application/openmetrics-text; vers")
        assert body.endswith(b"# EOF\n")
        code, headers, body = get(server, Accept="text/html,*/*;q=0.8")
        assert (code, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert b"# EOF" not in body
        assert b'flatout_device_up{gpu="0",uuid="GPU-0"} 1.0' in body


def test_an_answer_may_be_compressed() -> None:
    with serving(steady()) as server:
        _, headers, body = get(server, Accept_Encoding="gzip, deflate")
        assert headers["Content-Encoding"] == "gzip"
        assert b"flatout_device_up" in gzip.decompress(body)
        _, headers, body = get(server, Accept_Encoding="gzip;q=0")
        assert "Content-Encoding" not in headers


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (PROMETHEUS, "openmetrics"),
        ("application/openmetrics-text", "openmetrics"),
        ("application/openmetrics-text;version=0.0.1", "plain"),
        ("application/openmetrics-text;q=0.2,text/plain", "plain"),
        ("application/openmetrics-text;q=nonsense", "plain"),
        ("", "plain"),
        (";;;,,,===", "plain"),
    ],
)
def test_formats_are_negotiated(accept: str, expected: str) -> None:
    assert preferred_format(accept) == expected


def test_compression_is_negotiated() -> None:
    assert wants_gzip("deflate, gzip")
    assert not wants_gzip("identity")


def test_health_says_when_nobody_looks_any_more() -> None:
    now = [1000.0]
    old = frame_of(gpu(taken_at_unix_s=1000.0))
    with serving(Exporter(lambda: old, now_unix_s=lambda: now[0])) as server:
        server.exporter.observe()
        code, _, body = get(server, "/health")
        assert (code, json.loads(body)["status"]) == (200, "ok")
        now[0] += 61
        code, _, body = get(server, "/health")
        assert (code, json.loads(body)) == (503, {"status": "no new samples", "sample_age_s": 61.0})


def test_a_connection_is_kept_for_many_scrapes() -> None:
    with serving(steady()) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        ports = set()
        for _ in range(50):
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            assert answer.status == 200
            answer.read()
            ports.add(connection.sock.getsockname())
        connection.close()
    assert len(ports) == 1


def test_scrapes_share_one_collection_and_all_succeed() -> None:
    asked: list[float] = []

    def frame() -> Frame:
        asked.append(time.monotonic())
        return fresh(frame_of(gpu(), live_jobs=(job(),)))

    with serving(Exporter(frame, monotonic_s=lambda: 0.0)) as server, ThreadPoolExecutor(16) as pool:
        codes = list(pool.map(lambda _: get(server, Accept=PROMETHEUS)[0], range(400)))
        assert set(codes) == {200}
        assert len(asked) == 1, "a scrape reads what is there; it does not make others look again"
        assert b"flatout_exporter_scrapes_total 1.0" in get(server)[2]


def test_unknown_paths_and_methods_are_refused() -> None:
    with serving(steady()) as server:
        assert get(server, "/etc/passwd")[0] == 404
        assert get(server, "/metrics?x=" + "y" * 200)[0] == 200
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        connection.request("DELETE", "/metrics")
        assert connection.getresponse().status == 501
        connection.close()


def test_garbage_on_the_line_harms_nobody_else() -> None:
    with serving(steady()) as server:
        for line in (
            b"\x16\x03\x01\x02\x00\x01",
            b"GET /metrics\r\n\r\n",
            b"A" * 70_000,
            b"GET / HTTP/9.9\r\n\r\n",
        ):
            raw = socket.create_connection(("127.0.0.1", server.server_port), timeout=60)
            with raw, contextlib.suppress(ConnectionError):  # it may hang up before it has heard all of it
                raw.sendall(line)
        half = socket.create_connection(("127.0.0.1", server.server_port), timeout=60)
        half.sendall(b"GET /metr")
        assert get(server)[0] == 200
        half.close()


def test_a_broken_collector_is_never_a_500() -> None:
    def broken(_look: object) -> object:
        raise ZeroDivisionError

    exporter = Exporter(lambda: frame_of(gpu()), collectors={"devices": broken})  # type: ignore[dict-item]
    with serving(exporter) as server:
        code, _, body = get(server)
        assert code == 200
        assert b'flatout_exporter_errors_total{collector="devices"} 1.0' in body


def test_only_the_token_opens_the_metrics_and_health_stays_open(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    with serving(steady(), Security(token=token_from(file))) as server:
        server.exporter.observe()
        for given in ("", "Bearer", "Bearer wrong", "Bearer s3cre", "Basic s3cret", "Bearer s3cret\xe9"):
            code, headers, body = get(server, Authorization=given)
            assert code == 401, given
            assert headers["WWW-Authenticate"].startswith("Bearer")
            assert b"flatout" not in body
        assert get(server, Authorization="Bearer s3cret")[0] == 200
        assert get(server, "/health")[0] == 200


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext"
    subprocess.run(
        [*words.split(), "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return folder / "cert.pem", folder / "key.pem"


def test_tls_is_served_and_a_client_that_stalls_in_the_handshake_stalls_itself(
    certificate: tuple[Path, Path],
) -> None:
    cert, key = certificate
    with serving(steady(), security_from(tls_cert=cert, tls_key=key)) as server:
        assert server.url.startswith("https://127.0.0.1:")
        silent = socket.create_connection(("127.0.0.1", server.server_port), timeout=60)
        trust = ssl.create_default_context(cafile=str(cert))
        connection = http.client.HTTPSConnection("127.0.0.1", server.server_port, context=trust, timeout=60)
        connection.request("GET", "/metrics")
        assert connection.getresponse().status == 200
        connection.close()
        silent.close()
        with pytest.raises((http.client.HTTPException, OSError)):
            get(server)  # plain HTTP to a TLS port


def test_a_certificate_that_cannot_be_used_is_said_before_anything_is_served(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "bad.pem").write_text("no certificate")
    with pytest.raises(CallerMistake, match="cannot use"):
        security_from(tls_cert=tmp_path / "bad.pem", tls_key=certificate[1])
    with pytest.raises(CallerMistake, match="without --tls-key"):
        security_from(tls_cert=certificate[0])


@pytest.mark.parametrize("text", ["", "two words\n", "\xfc\n"])
def test_a_file_without_a_token_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(text)
    with pytest.raises(CallerMistake, match="holds no token"):
        token_from(tmp_path / "token")


def test_a_port_in_use_is_a_clear_error() -> None:
    with serving(steady()) as server:
        with pytest.raises(EnvironmentProblem, match="in use") as raised:
            MetricsServer(Address("127.0.0.1", server.server_port), steady(), Security())
        assert f"--listen 127.0.0.1:{server.server_port + 1}" in raised.value.remedy


def test_addresses_are_read_as_people_write_them() -> None:
    assert parse_address("127.0.0.1:80") == Address("127.0.0.1", 80)
    assert parse_address(":9000") == Address("0.0.0.0", 9000)
    assert parse_address("[::1]:9000") == Address("::1", 9000)
    assert parse_address("::1").host == "::1"
    assert parse_address("gpu-7") == Address("gpu-7", 19838)
    for wrong in ("127.0.0.1:http", "127.0.0.1:70000", "a b:80"):
        with pytest.raises(CallerMistake):
            parse_address(wrong)


def test_others_can_reach_it_only_where_that_is_said_and_then_it_warns() -> None:
    assert parse_address(DEFAULT_LISTEN).is_loopback
    assert exposure(parse_address(DEFAULT_LISTEN), Security()) == ()
    wide = parse_address("0.0.0.0:1")
    assert len(exposure(wide, Security())) == 2
    assert ["unencrypted" in text for text in exposure(wide, Security(token="x"))] == [True]
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    assert ["--token-file" in text for text in exposure(wide, Security(tls=tls))] == [True]
    assert exposure(wide, Security(tls=tls, token="x")) == ()


def test_a_token_that_is_pushed_in_the_clear_is_warned_of() -> None:
    secret = Security(token="x")
    warned = [
        bool(sent_in_the_clear(url, secret))
        for url in (
            "http://far:4318/v1/metrics",
            "https://far/v1/metrics",
            "http://[::1]:4318/v1/metrics",
            "",
        )
    ]
    assert warned == [True, False, False, False]
    assert sent_in_the_clear("http://far:4318/v1/metrics", Security()) == ()


def test_a_thread_that_cannot_be_started_takes_nobodys_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.monitor.export.server._CONNECTIONS", 2)
    with MetricsServer(LOOPBACK, steady(), Security()) as server:
        with monkeypatch.context() as planted:
            planted.setattr(threading.Thread, "start", _refused)
            for _ in range(3):
                with pytest.raises(RuntimeError, match="can't start"):
                    server.process_request(None, None)
        assert [server._open.acquire(blocking=False) for _ in range(3)] == [True, True, False]


def _refused(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
