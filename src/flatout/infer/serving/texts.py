"""A language model of a folder, made ready: loaded, proven, given its room, and in its thread."""

import asyncio
from pathlib import Path
from typing import Any

import torch

from flatout.infer.generating.generator import Generator, Request
from flatout.infer.generating.own_settings import own_sampling, own_stops, unheeded
from flatout.infer.generating.planning import rows_that_fit
from flatout.infer.generating.proving import refusal
from flatout.infer.generating.sampling import Sampling
from flatout.infer.serving.completing import Completing
from flatout.infer.serving.engine import Engine
from flatout.infer.serving.loading import leave_a_core
from flatout.infer.serving.metrics import Metric
from flatout.infer.serving.openapi import described, failures
from flatout.infer.serving.placing import placed
from flatout.infer.serving.problems import Problem
from flatout.records.errors import CallerMistake, EnvironmentProblem
from flatout.records.serving import ServeOrder, Serving, Sizing

# Where nobody said: texts at once, and tokens of each.
_ROWS = {"cuda": 64, "cpu": 4}
_CONTEXT = 4096
_WARM_UP_TOKENS = 8


class TextService:
    """OpenAI's endpoints."""

    def __init__(self, engine: Engine, completing: Completing, order: ServeOrder) -> None:
        self._engine, self._completing, self._order = engine, completing, order

    def endpoints(self) -> dict[str, Any]:
        """By path."""
        here = self._completing
        return {
            "/v1/completions": here.completions,
            "/v1/chat/completions": here.chat,
            "/v1/models": here.models,
        }

    def metrics(self) -> list[Metric]:
        """For Prometheus."""
        return self._completing.metrics()

    def document(self) -> dict[str, Any]:
        """What OpenAI's clients need no word of, for others."""
        return described(
            self._completing.name, (), {}, token=bool(self._order.token), paths=_paths(self._order)
        )

    def shed(self, method: str, path: str) -> Problem | None:
        """What is refused unread."""
        return self._completing.shed(method, path)

    def stuck(self) -> str:
        """A device that is lost, or a step that takes longer than any text may."""
        if self._engine.broken:
            return self._engine.broken
        lasted = self._engine.turn_for_s
        return f"a step has been under way for {lasted:.0f} s" if lasted > self._order.timeout_s else ""

    def drain(self, timeout_s: float) -> bool:
        """Write what was begun to its end."""
        return self._engine.drain(timeout_s)


def prepare(order: ServeOrder, events: Any, loop: asyncio.AbstractEventLoop) -> tuple[TextService, Serving]:
    """Everything up to the first request; in a thread."""
    events.tell("stage", name="loading the model")
    leave_a_core()
    model, tokenizer, name = _loaded(order)
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None) or _CONTEXT
    length = order.context or min(longest, _CONTEXT)
    events.tell("stage", name="looking whether it can be driven")
    why = refusal(model, length)
    if why:
        raise CallerMistake(
            f"{order.target} cannot be served by us: {why}",
            expected="a decoder whose tokens look at all before them",
            remedy=f"flatout serve --llm {order.target} --engine vllm",
        )
    device = next(model.parameters()).device
    wanted = order.rows or _ROWS.get(device.type, _ROWS["cpu"])
    try:
        rows = rows_that_fit(model, wanted, length)
    except MemoryError as error:
        raise EnvironmentProblem(
            str(error), expected="room for one text", remedy="--context 1024, or a larger GPU"
        ) from error
    generator = Generator(model, rows=rows, length=length)
    events.tell("stage", name="warming up (on a GPU, a step is compiled and captured)")
    # As the model's own settings say, else as OpenAI's service does.
    usual = own_sampling(model) or Sampling(temperature=1.0)
    for sampling in {Sampling(), usual}:
        generator.generate([Request([1], _WARM_UP_TOKENS, sampling) for _ in range(rows)])
    # Nobody shall wait for a compiler because somebody else was the first to ask for top_p or a long text.
    generator.decoder.prepare()
    most_waiting = order.queue or 2 * rows
    engine = Engine(generator, loop, most_waiting)
    engine.start()
    reason = (
        "so many fit beside the model" if rows < wanted else "as asked" if order.rows else "the usual number"
    )
    sizing = Sizing(most=rows, reason=reason, wait_s=0.0, queue=most_waiting, latency_limit_s=order.timeout_s)
    about = Serving(
        url="",
        model=name,
        device=str(device),
        inputs=(),
        sizing=sizing,
        notes=tuple(f"{one} of its generation_config is not heeded" for one in unheeded(model)),
        rows=rows,
        context=length,
    )
    completing = Completing(engine, tokenizer, name, usual, own_stops(model), order)
    return TextService(engine, completing, order), about


def _loaded(order: ServeOrder) -> tuple[Any, Any, str]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = Path(order.target)
    if not (folder / "config.json").is_file():
        raise CallerMistake(
            f"{folder} has no config.json",
            expected="a folder with a language model of Hugging Face",
            remedy="hf download OWNER/NAME --local-dir FOLDER",
        )
    device = placed(order.device)
    kinds: Any = (AutoTokenizer, AutoModelForCausalLM)
    try:
        tokenizer = kinds[0].from_pretrained(folder, local_files_only=True)
        # As it was saved; a CPU computes in float32 what it would only emulate.
        dtype = "auto" if device.type != "cpu" else torch.float32
        model = kinds[1].from_pretrained(folder, local_files_only=True, dtype=dtype).to(device).eval()
    except Exception as error:
        said = (str(error).splitlines() or [""])[0][:300]
        raise CallerMistake(
            f"{folder} cannot be loaded: {type(error).__name__}: {said}",
            expected="config, weights and tokenizer of a language model",
            remedy="compare the folder with what its page lists; --debug shows where it failed",
        ) from error
    return model.requires_grad_(False), tokenizer, folder.resolve().name


def _paths(order: ServeOrder) -> dict[str, Any]:
    token = bool(order.token)
    common: dict[str, Any] = {
        "max_tokens": {"type": "integer", "minimum": 1, "maximum": 10_000_000},
        "temperature": {"type": "number", "minimum": 0, "maximum": 100},
        "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        "stream": {"type": "boolean"},
    }
    message = {
        "type": "object",
        "properties": {"role": {"type": "string", "minLength": 1}, "content": {"type": "string"}},
        "required": ["role", "content"],
    }
    talk = {"type": "array", "items": message, "minItems": 1}

    def post(words: str, own: dict[str, Any], example: dict[str, Any]) -> dict[str, Any]:
        schema = {"type": "object", "properties": {**own, **common}, "required": list(own)}
        answer = {"type": "object", "required": ["id", "choices", "model", "object"]}
        kinds = {"application/json": {"schema": answer}, "text/event-stream": {"schema": {"type": "string"}}}
        return {
            "post": {
                "summary": words,
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": schema, "example": example}},
                },
                "responses": {
                    "200": {"description": "The text.", "content": kinds},
                    **failures(400, 404, 408, 413, 415, 429, 500, 503, 504, token=token),
                },
                "security": [{"bearer": []}] if token else [],
            }
        }

    asking = {
        "max_tokens": 64,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    listed = {
        "200": {"description": "The model.", "content": {"application/json": {"schema": {"type": "object"}}}}
    }
    return {
        "/v1/completions": post(
            "Go on with a text.", {"prompt": {"type": "string", "minLength": 1}}, {"prompt": "The", **asking}
        ),
        "/v1/chat/completions": post(
            "Answer in a conversation.",
            {"messages": talk},
            {"messages": [{"role": "user", "content": "Hello"}], **asking},
        ),
        "/v1/models": {
            "get": {"summary": "What is served.", "responses": {**listed, **failures(503, token=token)}}
        },
    }
