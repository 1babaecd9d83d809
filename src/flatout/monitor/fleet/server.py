"""A Prometheus server behind its HTTP API: asked politely, believed carefully."""

import base64
import dataclasses
import http.client
import os
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatout.monitor.bearer import is_in_the_clear, token_from
from flatout.monitor.fleet.answers import Refusal, Row, rows_of
from flatout.records.errors import CallerMistake, EnvironmentProblem

USER_VARIABLE = "FLATOUT_PROMETHEUS_USER"
PASSWORD_VARIABLE = "FLATOUT_PROMETHEUS_PASSWORD"  # noqa: S105 - a name, no password
# Ten thousand GPUs with all their labels stay below this.
_LARGEST_ANSWER = 128 << 20
_CHUNK = 1 << 20
# The server gives up a little before we do, and says why.
_SPARE_S = 5.0
_A_SERVER = "the address of a Prometheus server, such as http://prometheus:9090"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Access:
    """How to get in: where, as whom, and whom to trust."""

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None
    timeout_s: float = 30.0
    environment: Mapping[str, str] = dataclasses.field(default_factory=lambda: os.environ, repr=False)


class Server:
    """Answers to queries, all for the same moment of the server's own clock."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self.url = address(access.url)
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=_trust(access)), _SameHostOnly
        )
        self._headers = {"Accept": "application/json", "User-Agent": "flatout", **_authorization(access)}

    @property
    def is_exposed(self) -> bool:
        """Whether a secret travels in the clear to another machine."""
        return "Authorization" in self._headers and is_in_the_clear(self.url)

    def now(self) -> float:
        """The server's own time; also the question whether this is a Prometheus server at all."""
        rows = self.query("vector(time())")
        if not rows:
            raise self._no_prometheus("its clock has no time")
        return rows[0].value

    def query(self, text: str, at_unix_s: float | None = None) -> list[Row]:
        """The rows of an instant query; Refusal where the server says no to this query alone."""
        form = {"query": text, "timeout": f"{self._access.timeout_s:g}s"}
        if at_unix_s is not None:
            form["time"] = f"{at_unix_s:.3f}"
        status, body = self._ask(form)
        rows = rows_of(body)
        if rows is None:
            raise self._refused(status, body)
        return rows

    def _ask(self, form: Mapping[str, str]) -> tuple[int, bytes]:
        data = urllib.parse.urlencode(form).encode()
        request = urllib.request.Request(  # noqa: S310 - `address` lets http and https pass alone
            f"{self.url}/api/v1/query", data=data, headers=self._headers, method="POST"
        )
        try:
            return self._exchange(request)
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            raise self._unreachable(getattr(error, "reason", None) or error) from error

    def _exchange(self, request: urllib.request.Request) -> tuple[int, bytes]:
        patience_s = self._access.timeout_s + _SPARE_S
        deadline = time.monotonic() + patience_s
        try:
            answer = self._opener.open(request, timeout=patience_s)
        except urllib.error.HTTPError as refusal:
            answer = refusal
        with answer:
            return answer.status or 0, self._body(answer, deadline)

    def _body(self, answer: Any, deadline: float) -> bytes:
        """All of it, within size and time: a server that drips would hold us for ever."""
        chunks: list[bytes] = []
        size = 0
        while chunk := answer.read1(_CHUNK):  # what is there, without waiting for more
            chunks.append(chunk)
            size += len(chunk)
            if size > _LARGEST_ANSWER:
                raise Refusal(f"its answer is larger than {_LARGEST_ANSWER >> 20} MiB")
            if time.monotonic() > deadline:
                raise TimeoutError(f"no whole answer within {self._access.timeout_s:g} s")
        return b"".join(chunks)

    def _unreachable(self, reason: object) -> EnvironmentProblem:
        if isinstance(reason, ssl.SSLCertVerificationError):
            return EnvironmentProblem(
                f"{self.url}: its certificate cannot be trusted: {reason.verify_message}",
                expected="a certificate of an authority that this machine knows",
                remedy="--ca-file FILE with the certificate of your own authority",
            )
        return EnvironmentProblem(
            f"{self.url} does not answer: {getattr(reason, 'strerror', None) or reason}",
            expected="a Prometheus server that can be reached from here",
            remedy=f"curl {self.url}/-/ready   # is it up, is the port right, is there a way from here?",
        )

    def _refused(self, status: int, body: bytes) -> Exception:
        if status in (401, 403):
            return CallerMistake(
                f"{self.url} lets nobody in without permission (HTTP {status})",
                expected="a token or a password that it accepts",
                remedy=f"--token-file FILE, or {USER_VARIABLE} and {PASSWORD_VARIABLE} in the environment",
            )
        said = Refusal.said_by(body)
        if said is not None:
            return said
        if status >= 500 or status == 429:
            return EnvironmentProblem(
                f"{self.url} cannot answer now (HTTP {status})",
                expected="a Prometheus server that is ready",
                remedy="wait until it is: it says 503 while it starts or is overloaded",
            )
        return self._no_prometheus(f"HTTP {status}")

    def _no_prometheus(self, why: str) -> CallerMistake:
        return CallerMistake(
            f"{self.url} answers, but not like a Prometheus server ({why})",
            expected=_A_SERVER,
            remedy="check port and path; behind a proxy the path belongs to it: https://host/prometheus",
        )


class _SameHostOnly(urllib.request.HTTPRedirectHandler):
    """A redirect elsewhere would carry the token with it."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        old, new = urllib.parse.urlsplit(req.full_url), urllib.parse.urlsplit(newurl)
        if (old.hostname, old.port, old.scheme) != (new.hostname, new.port, new.scheme):
            where = f"{new.scheme}://{new.netloc}{new.path}".removesuffix("/api/v1/query")
            raise CallerMistake(
                f"{old.scheme}://{old.netloc} sends us on to {where}",
                expected="the address at which Prometheus itself answers",
                remedy=f"--url {where}, if that is where you want to go (a sign-in page is no use here)",
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def address(url: str) -> str:
    """The base of an HTTP API, from what a user may have copied from a browser."""
    try:
        parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urllib.parse.SplitResult("", "", "", "", "")
    if parts.scheme not in ("http", "https") or not host or port == 0 or any(c <= " " for c in url):
        raise CallerMistake(
            f"{_hidden(url)!r} is no address", expected=_A_SERVER, remedy="--url http://host:9090"
        )
    if parts.username is not None:
        raise CallerMistake(
            f"a name in the address {_hidden(url)!r}: every process here can read it",
            expected="an address without a password",
            remedy=f"{USER_VARIABLE} and {PASSWORD_VARIABLE} in the environment, or --token-file",
        )
    path = parts.path.rstrip("/")
    for tail in ("/graph", "/query", "/api/v1"):
        path = path.removesuffix(tail)
    return f"{parts.scheme}://{parts.netloc}{path}"


def _hidden(url: str) -> str:
    """Without what may be a password."""
    before, at, after = url.rpartition("@")
    return f"{before.partition('//')[0]}//...@{after}" if at and "//" in before else url


def _trust(access: Access) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(access.ca_file) if access.ca_file else None)
    except (OSError, ssl.SSLError) as error:
        raise CallerMistake(
            f"--ca-file {access.ca_file}: {getattr(error, 'strerror', None) or error}",
            expected="a file with certificates in PEM",
            remedy="check the path; it begins with -----BEGIN CERTIFICATE-----",
        ) from error


def _authorization(access: Access) -> dict[str, str]:
    if access.token_file is not None:
        return {"Authorization": f"Bearer {token_from(access.token_file)}"}
    user = access.environment.get(USER_VARIABLE)
    if not user:
        return {}
    password = access.environment.get(PASSWORD_VARIABLE, "")
    return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}
