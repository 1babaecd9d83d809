"""Servers that are not there, do not let us in, are something else, or never finish."""

import contextlib
import http.server
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flatout.monitor.fleet.answers import Refusal, rows_of
from flatout.monitor.fleet.server import PASSWORD_VARIABLE, USER_VARIABLE, Access, Server, address
from flatout.records.errors import CallerMistake, EnvironmentProblem
from tests.fakes.prometheus import free_port

Handler = http.server.BaseHTTPRequestHandler
TIME = (
    b'{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"1700000000"]}]}}'
)


@contextlib.contextmanager
def answering(
    answer: Callable[[Handler], None], *, certificate: Path | None = None, key: Path | None = None
) -> Iterator[str]:
    """A server on this machine that answers each question in this way."""

    class Answers(Handler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            with contextlib.suppress(OSError):
                answer(self)

        def log_message(self, *words: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http{'s' * (certificate is not None)}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def says(code: int, body: bytes, **headers: str) -> Callable[[Handler], None]:
    def answer(asked: Handler) -> None:
        asked.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            asked.send_header(name, value)
        asked.end_headers()
        asked.wfile.write(body)

    return answer


def test_a_server_that_is_not_there_is_the_environments_fault() -> None:
    with pytest.raises(EnvironmentProblem, match="does not answer: Connection refused"):
        Server(Access(url=f"127.0.0.1:{free_port()}")).now()


def test_a_name_that_nobody_knows_is_told_as_such() -> None:
    with pytest.raises(EnvironmentProblem, match="does not answer"):
        Server(Access(url="http://no-such-host.invalid:9090")).now()


@pytest.mark.parametrize("code", [401, 403])
def test_one_that_lets_nobody_in_asks_for_a_token(code: int) -> None:
    with answering(says(code, b"no")) as url, pytest.raises(CallerMistake, match="--token-file"):
        Server(Access(url=url)).now()


@pytest.mark.parametrize("code", [429, 500, 503])
def test_one_that_cannot_answer_now_is_waited_for(code: int) -> None:
    with answering(says(code, b"starting")) as url, pytest.raises(EnvironmentProblem, match=f"HTTP {code}"):
        Server(Access(url=url)).now()


@pytest.mark.parametrize(
    "body",
    [
        b"<html>Grafana</html>",
        b"",
        b"null",
        b"[1, 2]",
        b'{"status":"success"}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"status":"success","data":{"resultType":"vector","result":[{"metric":3,"value":"x"}]}}',
        b'{"status":"success","data":{"resultType":"scalar","result":[1,"2"]}}',
    ],
)
def test_what_is_no_prometheus_is_told_as_such(body: bytes) -> None:
    with answering(says(200, body)) as url, pytest.raises(CallerMistake, match="not like a Prometheus"):
        Server(Access(url=url)).now()


def test_a_query_that_is_refused_is_no_end_of_the_rest() -> None:
    body = (
        b'{"status":"error","errorType":"execution","error":"query processing would load too many samples"}'
    )
    with answering(says(422, body)) as url, pytest.raises(Refusal, match="too many samples"):
        Server(Access(url=url)).query("up")


def test_a_redirect_elsewhere_does_not_get_the_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    got: list[str | None] = []

    def elsewhere(asked: Handler) -> None:
        got.append(asked.headers.get("Authorization"))
        says(200, TIME)(asked)

    with (
        answering(elsewhere) as other,
        answering(says(302, b"", Location=f"{other}/api/v1/query")) as url,
        pytest.raises(CallerMistake, match="sends us on to"),
    ):
        Server(Access(url=url, token_file=token)).now()
    assert got == []


def test_token_and_password_are_sent_and_never_shown(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    got: list[str | None] = []

    def remembering(asked: Handler) -> None:
        got.append(asked.headers.get("Authorization"))
        says(200, TIME)(asked)

    names = {USER_VARIABLE: "ada", PASSWORD_VARIABLE: "lovelace"}
    with answering(remembering) as url:
        assert Server(Access(url=url, token_file=token, environment={})).now() == 1700000000
        access = Access(url=url, environment=names)
        Server(access).now()
        Server(Access(url=url, environment={})).now()
    assert got == ["Bearer secret", "Basic YWRhOmxvdmVsYWNl", None]
    assert "lovelace" not in repr(access)


def test_a_secret_in_the_clear_is_noticed_except_on_this_machine(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    exposed = {
        url: Server(Access(url=url, token_file=token)).is_exposed
        for url in ("http://far", "https://far", "http://localhost:1", "http://[::1]:1")
    }
    assert exposed == {
        "http://far": True,
        "https://far": False,
        "http://localhost:1": False,
        "http://[::1]:1": False,
    }


@pytest.mark.parametrize("content", ["", "two words", "caf\u00e9", "line\nline"])
def test_a_token_file_without_a_token_is_refused(tmp_path: Path, content: str) -> None:
    token = tmp_path / "token"
    token.write_text(content)
    with pytest.raises(CallerMistake, match="holds no token"):
        Server(Access(url="http://x", token_file=token))


def test_one_that_drips_is_left_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # Far longer than the pause between two drops: on a busy machine, too, each of them comes in time.
    monkeypatch.setattr("flatout.monitor.fleet.server._SPARE_S", 1.5)

    drops: list[int] = []

    def drip(asked: Handler) -> None:
        asked.send_response(200)
        asked.end_headers()
        for drop in range(5000):
            asked.wfile.write(b" ")
            asked.wfile.flush()
            drops.append(drop)
            time.sleep(0.02)

    with answering(drip) as url, pytest.raises(EnvironmentProblem, match="no whole answer"):
        Server(Access(url=url, timeout_s=0.1)).now()
    assert len(drops) < 5000, "it was heard to the end"


def test_one_that_says_too_much_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.monitor.fleet.server._LARGEST_ANSWER", 1 << 20)
    with answering(says(200, b" " * (3 << 20))) as url, pytest.raises(Refusal, match="larger than"):
        Server(Access(url=url)).query("up")


def test_addresses_as_people_copy_them() -> None:
    base = "http://prometheus:9090"
    for given in (base, "prometheus:9090", f"{base}/", f"{base}/graph", f"{base}/query", f"{base}/api/v1"):
        assert address(given) == base
    assert address("https://host/prometheus/") == "https://host/prometheus"
    assert address("http://[::1]:9090") == "http://[::1]:9090"


@pytest.mark.parametrize(
    "given", ["", "file:///etc/passwd", "http://", "http://a b", "http://x:0", "http://x:y", "http://[x"]
)
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(CallerMistake, match="is no address"):
        address(given)


def test_what_is_not_finite_is_left_out_of_the_rows() -> None:
    values = ("1", "NaN", "+Inf", "-Inf", "1e400", "x")
    rows = ",".join(f'{{"metric":{{"a":"{value}"}},"value":[1,"{value}"]}}' for value in values)
    found = rows_of(f'{{"status":"success","data":{{"resultType":"vector","result":[{rows}]}}}}'.encode())
    assert found is not None
    assert [row.value for row in found] == [1.0]


def test_labels_are_cut_before_anybody_reads_them() -> None:
    series = f'{{"metric":{{"__name__":"up","host":"{"x" * 100_000}"}},"value":[1,"1"]}}'
    (row,) = (
        rows_of(f'{{"status":"success","data":{{"resultType":"vector","result":[{series}]}}}}'.encode()) or []
    )
    assert len(row.label("host")) < 300


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_a_certificate_is_verified_and_ones_own_authority_can_be_named(tmp_path: Path) -> None:
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext"
    made = [*words.split(), "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", "key", "-out", "cert"]
    subprocess.run(made, cwd=tmp_path, check=True, capture_output=True)
    with answering(says(200, TIME), certificate=tmp_path / "cert", key=tmp_path / "key") as url:
        with pytest.raises(EnvironmentProblem, match="--ca-file") as refused:
            Server(Access(url=url)).now()
        assert "cannot be trusted" in refused.value.received
        assert Server(Access(url=url, ca_file=tmp_path / "cert")).now() == 1700000000
