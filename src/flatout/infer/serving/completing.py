"""/v1/completions, /v1/chat/completions and /v1/models, whole or as a stream of events."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from flatout.infer.generating.generator import Request as TextRequest
from flatout.infer.generating.sampling import Sampling
from flatout.infer.serving.asking import Chat, Completion, asked, sampling_of, stops_of
from flatout.infer.serving.batching import Closing, Full
from flatout.infer.serving.door import GONE, read_body, told_when_gone
from flatout.infer.serving.engine import Engine, Job, Speller, Stops
from flatout.infer.serving.metrics import (
    FIRST_TOKEN_SECONDS,
    REQUEST_SECONDS,
    TOKEN_SECONDS,
    Counter,
    Gauge,
    Histogram,
    Metric,
)
from flatout.infer.serving.predicting import leaving
from flatout.infer.serving.problems import Problem, bad
from flatout.records.serving import ServeOrder

_USUAL_TOKENS = 16
_WRITE = ("/v1/completions", "/v1/chat/completions")
_OPERATION = {"text_completion": "text_completion", "chat.completion": "chat"}


class Completing:
    """The endpoints of one language model."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Any,
        name: str,
        usual: Sampling,
        stops: tuple[int, ...],
        order: ServeOrder,
    ) -> None:
        self._engine, self._tokenizer, self.name = engine, tokenizer, name
        self._usual, self._stops, self._order = usual, stops, order
        self._since = int(time.time())
        labels = ("gen_ai_operation_name", "gen_ai_request_model")
        self._took = Histogram(
            "gen_ai_server_request_duration_seconds", "Until the last token.", REQUEST_SECONDS, labels
        )
        self._first = Histogram(
            "gen_ai_server_time_to_first_token_seconds",
            "Of successful responses.",
            FIRST_TOKEN_SECONDS,
            labels,
        )
        self._each = Histogram(
            "gen_ai_server_time_per_output_token_seconds", "After the first token.", TOKEN_SECONDS, labels
        )
        self._tokens = Counter(
            "flatout_serve_tokens_total", "Tokens read and written.", ("gen_ai_token_type",)
        )
        self._texts = Counter("flatout_serve_items_total", "Texts, by what became of them.", ("outcome",))

    def metrics(self) -> list[Metric]:
        """All of them."""
        engine = self._engine
        return [
            *(self._took, self._first, self._each, self._tokens, self._texts),
            Gauge("flatout_serve_queue_items", "Texts that wait for a row.", lambda: float(engine.waiting)),
            Gauge(
                "flatout_serve_running_items", "Texts that are being written.", lambda: float(engine.running)
            ),
        ]

    async def models(self, _request: Request) -> Response:
        """GET /v1/models."""
        model = {"id": self.name, "object": "model", "created": self._since, "owned_by": "flatout"}
        return _json({"object": "list", "data": [{**model, "max_model_len": self._engine.length}]})

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        found: Completion = asked(await _body(request, self._order), Completion, self.name)
        prompt: Any = found.prompt
        if isinstance(prompt, list) and any(not isinstance(one, int) for one in prompt):
            if len(prompt) > 1:
                raise bad(f"{len(prompt)} prompts", "one: others share its batch anyway", "one request each")
            prompt = prompt[0]
        ids = await asyncio.to_thread(self._ids, prompt)
        return await self._answer(request, found, ids, "text_completion", found.max_tokens or _USUAL_TOKENS)

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        found: Chat = asked(await _body(request, self._order), Chat, self.name)
        ids = await asyncio.to_thread(self._templated, found)
        most = found.max_completion_tokens or found.max_tokens or max(1, self._engine.length - len(ids))
        return await self._answer(request, found, ids, "chat.completion", most)

    def _ids(self, prompt: Any) -> list[int]:
        return [
            int(one) for one in (self._tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt)
        ]

    def _templated(self, found: Chat) -> list[int]:
        if not getattr(self._tokenizer, "chat_template", None):
            raise bad(
                "a conversation",
                "a text: this model has no template for conversations",
                "POST /v1/completions",
            )
        messages = [{"role": one.role, "content": _text(one.content)} for one in found.messages]
        try:
            text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template is a program of its own
            raise bad(
                f"the model's template refuses it: {error}", "roles and an order that it knows"
            ) from error
        return [int(one) for one in self._tokenizer(text, add_special_tokens=False)["input_ids"]]

    async def _answer(self, request: Request, found: Any, ids: list[int], kind: str, most: int) -> Response:
        self._insist_on_room(ids)
        wanted = min(most, self._engine.length - len(ids))
        text = TextRequest(
            ids, wanted, sampling_of(found, self._usual), () if found.ignore_eos else self._stops
        )
        written = _Written(self, text, kind, found)
        written.job = self._submitted(text)
        if found.stream:
            return _Stream(written)
        return await written.whole(request)

    def _insist_on_room(self, ids: list[int]) -> None:
        words = len(self._tokenizer)
        if not 0 < len(ids) < self._engine.length:
            raise bad(
                f"a prompt of {len(ids)} tokens",
                f"1 to {self._engine.length - 1}",
                "a shorter one, or --context",
            )
        if any(not 0 <= one < words for one in ids):
            raise bad("a token that the model does not know", f"0 to {words - 1}")

    def _submitted(self, text: TextRequest) -> Job:
        try:
            return self._engine.submit(text)
        except Full as full:
            raise self._too_many(full.retry_after_s) from None
        except Closing:
            raise leaving() from None

    def shed(self, method: str, path: str) -> Problem | None:
        """No for a text, before it is read, where there is no room for it."""
        if method != "POST" or path not in _WRITE or not self._engine.is_full:
            return None
        return self._too_many(self._engine.retry_after_s)

    def _too_many(self, retry_after_s: float) -> Problem:
        self._texts.add(1, "refused")
        return Problem(
            429,
            f"{self._engine.waiting} texts wait already",
            expected="fewer at a time",
            remedy=f"the same again in {retry_after_s:.3g} s",
            retry_after_s=retry_after_s,
        )

    def spelled(self, ids: list[int]) -> str:
        """Text, without the marks that are for the model alone."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def ended(self, job: Job, kind: str, outcome: str) -> None:
        """Count it."""
        now, labels = time.monotonic(), (_OPERATION[kind], self.name)
        count = len(job.request.tokens)
        self._texts.add(1, outcome)
        self._tokens.add(len(job.request.prompt), "input")
        self._tokens.add(count, "output")
        if outcome == "answered":
            self._took.see(now - job.arrived_s, *labels)
            if job.first_s is not None:
                self._first.see(job.first_s - job.arrived_s, *labels)
                if count > 1:
                    self._each.see((now - job.first_s) / (count - 1), *labels)

    def give_up(self, job: Job) -> None:
        """Nobody wants the rest."""
        self._engine.leave(job)

    @property
    def timeout_s(self) -> float:
        """What a text may take."""
        return self._order.timeout_s


class _Written:
    """One answer while it is written."""

    def __init__(self, owner: Completing, text: TextRequest, kind: str, found: Any) -> None:
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
        return _json(
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


class _Stream(StreamingResponse):
    """Events as they come. A client may go before the first: what is written for it ends then, too."""

    def __init__(self, written: _Written) -> None:
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


async def _body(request: Request, order: ServeOrder) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(
            415,
            f"content-type {kind[:100]!r}",
            expected="application/json",
            remedy="content-type: application/json",
        )
    return await read_body(request, order)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content or ())


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


def _json(body: Any) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")


def _sse(body: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"
