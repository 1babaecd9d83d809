"""/v1/completions, /v1/chat/completions and /v1/models, whole or as a stream of events."""

import asyncio
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from flatout.infer.generating.generator import Request as TextRequest
from flatout.infer.generating.sampling import Sampling
from flatout.infer.serving.asking import Chat, Completion, asked, sampling_of
from flatout.infer.serving.door import read_body
from flatout.infer.serving.engine import Engine, Job
from flatout.infer.serving.metrics import (
    FIRST_TOKEN_SECONDS,
    REQUEST_SECONDS,
    TOKEN_SECONDS,
    Counter,
    Gauge,
    Histogram,
    Metric,
)
from flatout.infer.serving.problems import Problem, bad, leaving, too_many
from flatout.infer.serving.tickets import Closing, Full
from flatout.infer.serving.writing import Stream, Written, json_answer
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
        return json_answer({"object": "list", "data": [{**model, "max_model_len": self._engine.length}]})

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
        written = Written(self, text, kind, found)
        written.job = self._submitted(text)
        if found.stream:
            return Stream(written)
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
        return too_many(f"{self._engine.waiting} texts", retry_after_s)

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
