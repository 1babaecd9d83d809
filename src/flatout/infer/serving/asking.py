"""What OpenAI's completions ask for, read strictly: what we know and do not do is refused."""

from typing import Annotated, Any, Literal

import msgspec

from flatout.infer.generating.sampling import Sampling
from flatout.infer.serving.problems import Problem, bad

_Count = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
_Temperature = Annotated[float, msgspec.Meta(ge=0, le=100)]
_Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
_MOST_STOPS = 16


class StreamOptions(msgspec.Struct):
    """How a stream ends."""

    include_usage: bool = False


class _Common(msgspec.Struct):
    """What both kinds have. Fields that change nothing (user, metadata) are not read."""

    model: str | None = None
    max_tokens: _Count | None = None
    temperature: _Temperature | None = None
    top_p: _Share | None = None
    top_k: Annotated[int, msgspec.Meta(ge=0)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    # What other servers know beside OpenAI's.
    repetition_penalty: float | None = None
    min_p: float | None = None
    min_tokens: int | None = None


class Completion(_Common, kw_only=True):
    """POST /v1/completions."""

    # A text, its tokens, or a list with one of these.
    prompt: str | list[int | str | list[int]]
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None
    logprobs: int | None = None


class TextPart(msgspec.Struct):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Message(msgspec.Struct):
    """One of a conversation."""

    role: Annotated[str, msgspec.Meta(min_length=1)]
    content: str | list[TextPart] | None = None
    name: str | None = None


class Chat(_Common, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    max_completion_tokens: _Count | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: dict[str, Any] | None = None


# Fields that would change the answer, and the values with which they do not.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "logit_bias": (None, {}),
    "seed": (None,),
    "echo": (None, False),
    "suffix": (None, ""),
    "logprobs": (None, False),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "top_logprobs": (None, 0),
    "repetition_penalty": (None, 1),
    "min_p": (None, 0),
    "min_tokens": (None, 0),
    "response_format": (None, {"type": "text"}),
}


def asked(body: bytes, kind: type[Completion] | type[Chat], model: str) -> Any:
    """The request; raises Problem."""
    try:
        found = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise bad(f"the JSON does not fit: {error}", "what OpenAI's service takes") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad(f"the body is not JSON: {error}", "UTF-8 JSON") from None
    for name, values in _PLAIN.items():
        if hasattr(found, name) and getattr(found, name) not in values:
            raise bad(
                f"{name}: {getattr(found, name)!r:.100}",
                "none of it: this server does not do that",
                f"leave {name} out",
            )
    if found.model not in (None, "", model):
        raise Problem(404, f"model {found.model!r:.200}", expected=repr(model), remedy="GET /v1/models")
    if len(stops_of(found)) > _MOST_STOPS:
        raise bad(f"{len(stops_of(found))} words to stop at", f"at most {_MOST_STOPS}")
    return found


def stops_of(found: Any) -> list[str]:
    """Words to stop at."""
    return [found.stop] if isinstance(found.stop, str) else list(found.stop or ())


def sampling_of(found: Any, usual: Sampling) -> Sampling:
    """How tokens are drawn: as asked, else as the model's own settings say."""
    return Sampling(
        temperature=usual.temperature if found.temperature is None else found.temperature,
        top_k=usual.top_k if found.top_k is None else found.top_k,
        top_p=usual.top_p if found.top_p is None else found.top_p,
    )
