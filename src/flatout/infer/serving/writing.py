"""One text while it is written: answered as a whole, or as a stream of events."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from flatout.infer.generating.generator import Request as TextRequest
from flatout.infer.serving.asking import stops_of
from flatout.infer.serving.door import GONE, told_when_gone
from flatout.infer.serving.engine import Job
from flatout.infer.serving.problems import Problem, bad
from flatout.infer.serving.spelling import Speller, Stops


class Owner(Protocol):
    """Whose text it is: knows the model's words, and counts."""

    name: str

    @property
    def timeout_s(self) -> float:
        """What a text may take."""

    def spelled(self, ids: list[int]) -> str:
        """Text of tokens."""

    def give_up(self, job: Job) -> None:
        """Nobody wants the rest."""

    def ended(self, job: Job, kind: str, outcome: str) -> None:
        """Count it."""


class Written:
    """One answer while it is written."""

    def __init__(self, owner: Owner, text: TextRequest, kind: str, found: Any) -> None:
        self._owner, self._text, self._kind = owner, text, kind
        self._usage = found.stream_options is not None and found.stream_options.include_usage
        self._speller, self._stops = Speller(owner.spelled), Stops(stops_of(found))
        self._head = {
            "id": f"{'chatcmpl' if kind == 'chat.completion' else 'cmpl'}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": owner.name,
        }
        self.job: Job

    async def _pieces(self) -> AsyncIterator[tuple[str, str]]:
        """Pieces of text, and why it ended with the last one."""
        outcome = "left"
        try:
            async with asyncio.timeout(self._owner.timeout_s):
                while (token := await self.job.news.get()) is not None:
                    piece, stopped = self._stops.add(self._speller.add(token))
                    if stopped:
                        outcome = "answered"
                        yield piece, "stop"
                        return
                    if piece:
                        yield piece, ""
            if self.job.error is not None:
                outcome = "failed"
                raise self.job.error
            outcome = "answered"
            last, stopped = self._stops.add(self._speller.rest())
            yield last if stopped else last + self._stops.rest(), "stop" if stopped else self._text.ending
        except TimeoutError:
            outcome = "expired"
            raise
        finally:
            self._owner.give_up(self.job)
            self._owner.ended(self.job, self._kind, outcome)

    def give_up(self) -> None:
        """Nobody wants the rest."""
        self._owner.give_up(self.job)

    async def whole(self, request: Request) -> Response:
        """All of it at once; a client that goes is noticed."""
        parts: list[str] = []
        ending = ""

        async def collect() -> None:
            nonlocal ending
            async for piece, why in self._pieces():
                parts.append(piece)
                ending = why

        writing = asyncio.ensure_future(collect())
        try:
            with told_when_gone(request, writing.cancel):
                await asyncio.wait({writing})
        finally:
            writing.cancel()
        if writing.cancelled():
            return Response(status_code=GONE)
        _told(writing.exception(), self._owner.timeout_s)
        return json_answer(
            {
                **self._head,
                "object": self._kind,
                "choices": [self._choice("".join(parts), ending)],
                "usage": self._count(),
            }
        )

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events, as OpenAI's clients read them."""
        if self._kind == "chat.completion":
            yield self._event(
                {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
            )
        try:
            async for piece, why in self._pieces():
                yield self._event(self._delta(piece, why))
            if self._usage:
                yield _sse({**self._head, "object": self._chunk, "choices": [], "usage": self._count()})
            yield b"data: [DONE]\n\n"
        except Exception as error:  # noqa: BLE001 - the status is long sent: the stream itself must tell
            problem = _problem(error, self._owner.timeout_s)
            yield b"data: " + problem.body() + b"\n\n"

    @property
    def _chunk(self) -> str:
        return "chat.completion.chunk" if self._kind == "chat.completion" else self._kind

    def _event(self, choice: dict[str, Any]) -> bytes:
        return _sse({**self._head, "object": self._chunk, "choices": [choice]})

    def _delta(self, text: str, ending: str) -> dict[str, Any]:
        if self._kind == "chat.completion":
            return {"index": 0, "delta": {"content": text}, "finish_reason": ending or None}
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": ending or None}

    def _choice(self, text: str, ending: str) -> dict[str, Any]:
        if self._kind == "chat.completion":
            return {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": ending or None,
            }
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": ending or None}

    def _count(self) -> dict[str, int]:
        read, wrote = len(self._text.prompt), len(self._text.tokens)
        return {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}


class Stream(StreamingResponse):
    """Events as they come. A client may go before the first: what is written for it ends then, too."""

    def __init__(self, written: Written) -> None:
        super().__init__(
            written.events(), media_type="text/event-stream", headers={"cache-control": "no-cache"}
        )
        self._written = written

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Until its end, or the client's."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._written.give_up()


def _told(error: BaseException | None, timeout_s: float) -> None:
    if error is not None:
        raise _problem(error, timeout_s) from None


def _problem(error: BaseException, timeout_s: float) -> Problem:
    if isinstance(error, TimeoutError):
        return Problem(
            504, f"no end within {timeout_s:g} s", expected="one in that time", remedy="fewer max_tokens"
        )
    if isinstance(error, ValueError):
        return bad(str(error), "a request that the model has room for")
    return Problem(
        500, f"the model failed with {type(error).__name__}", expected="a text", remedy="ask again"
    )


def json_answer(body: Any) -> Response:
    """As JSON."""
    return Response(msgspec.json.encode(body), media_type="application/json")


def _sse(body: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"
