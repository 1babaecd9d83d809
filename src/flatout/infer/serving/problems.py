"""What a client is told when something is wrong: a status, and the three parts of every error."""

import math
from typing import Any

import msgspec

_JSON = b"application/json"


class Problem(Exception):
    """An answer that is no result."""

    def __init__(
        self,
        status: int,
        received: str,
        *,
        expected: str,
        remedy: str,
        retry_after_s: float | None = None,
        close: bool = False,
        allow: str = "",
    ) -> None:
        super().__init__(received)
        self.status, self.received, self.expected, self.remedy = status, received, expected, remedy
        self.retry_after_s = retry_after_s
        # The connection is of no more use: what is left in it cannot be told from a next request.
        self.close = close
        # The methods that there are, where another was used.
        self.allow = allow

    def body(self) -> bytes:
        """The document. `message` and `type` are there for clients made for OpenAI's service."""
        error: dict[str, Any] = {
            "message": f"{self.received}; expected: {self.expected}; try: {self.remedy}",
            "type": "invalid_request_error" if self.status < 500 else "server_error",
            "code": self.status,
            "received": self.received,
            "expected": self.expected,
            "remedy": self.remedy,
        }
        if self.retry_after_s is not None:
            error["retry_after_s"] = round(self.retry_after_s, 3)
        return msgspec.json.encode({"error": error})

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Of the answer, without its length."""
        found = [(b"content-type", _JSON)]
        if self.retry_after_s is not None:
            # Whole seconds are what HTTP has; the finer one is read by clients that know it.
            found.append((b"retry-after", str(max(1, math.ceil(self.retry_after_s))).encode()))
            found.append((b"retry-after-ms", str(max(1, math.ceil(1000 * self.retry_after_s))).encode()))
        if self.status == 401:
            found.append((b"www-authenticate", b"Bearer"))
        if self.allow:
            found.append((b"allow", self.allow.encode()))
        if self.close:
            found.append((b"connection", b"close"))
        return found


def too_many(waiting: str, retry_after_s: float) -> Problem:
    """More than can be answered in time; when to come back."""
    return Problem(
        429,
        f"{waiting} wait already",
        expected="fewer at a time",
        remedy=f"the same again in {retry_after_s:.3g} s",
        retry_after_s=retry_after_s,
    )


def leaving() -> Problem:
    """The server is about to end."""
    return Problem(
        503,
        "the server is about to end",
        expected="a server that stays",
        remedy="another one, or later",
        retry_after_s=5.0,
    )


def bad(received: str, expected: str, remedy: str = "GET /openapi.json says what is accepted") -> Problem:
    """The client's mistake."""
    return Problem(400, received, expected=expected, remedy=remedy)
