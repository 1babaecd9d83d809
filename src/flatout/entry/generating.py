"""`flatout.generate`: text from a language model of transformers, near what the device's memory allows."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from flatout.infer.generating.generator import Generator, Request
from flatout.infer.generating.own_settings import own_stops, unheeded
from flatout.infer.generating.readiness import turn_at
from flatout.infer.generating.sampling import Sampling

# More sequences than this take turns.
_MOST_ROWS = 64


def generate(
    model: Any,
    prompts: Any,
    *,
    max_new_tokens: int = 256,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    stop: Sequence[int] | None = None,
    tokenizer: Any = None,
    on_token: Callable[[int, int], None] | None = None,
) -> Any:
    """Continue each prompt, several at a time, in any lengths; greedy unless a temperature is given.

    Prompts are lists of token ids; with a `tokenizer` they may be texts, and so are the answers. Answers hold
    the new tokens alone. They end after `max_new_tokens`, or with one of `stop` (default: the model's own).
    `on_token(prompt's number, token)` hears of each token as it comes. The first call compiles, which takes a
    minute or two on a GPU; later ones with no longer sequences start at once. A model that cannot be driven
    this way is left to its own `generate`, with a warning that says why.

    Any thread may call: calls with the same model wait for each other. One that `on_token` makes is left to
    the model's own `generate`. Autocast around the call holds for it, and changing it makes the model ready
    anew; inference mode around it changes nothing.
    """
    texts = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], str))
    if texts and tokenizer is None:
        raise TypeError("prompts are texts: generate(..., tokenizer=...) is expected with these")
    given = [prompts] if isinstance(prompts, str) else list(prompts)
    ids = [list(tokenizer(one)["input_ids"]) if texts else [int(word) for word in one] for one in given]
    stops = own_stops(model) if stop is None else tuple(stop)
    requests = [
        Request(prompt, max_new_tokens, Sampling(temperature=temperature, top_k=top_k, top_p=top_p), stops)
        for prompt in ids
    ]
    for number, request in enumerate(requests):
        if on_token is not None:
            request.on_token = lambda token, number=number: on_token(number, token)  # type: ignore[misc]
    answers = _answered(model, requests)
    return [tokenizer.decode(one, skip_special_tokens=True) for one in answers] if texts else answers


def _answered(model: Any, requests: list[Request]) -> list[list[int]]:
    if not requests:
        return []
    length = max(len(one.prompt) + one.new_tokens for one in requests)
    own = unheeded(model, draws=any(one.sampling.temperature for one in requests))
    why = f"its generation_config asks for {', '.join(own)}" if own else ""
    if not why:
        with turn_at(model, rows=min(len(requests), _MOST_ROWS), length=length) as found:
            if isinstance(found, Generator):
                return found.generate(requests)
        why = found
    warnings.warn(f"flatout.generate leaves this model to its own generate(): {why}", stacklevel=3)
    return [_by_itself(model, request) for request in requests]


@torch.no_grad()
def _by_itself(model: Any, request: Request) -> list[int]:
    ids = torch.tensor([list(request.prompt)], device=next(model.parameters()).device)
    how = request.sampling
    drawing = (
        {"do_sample": True, "temperature": how.temperature, "top_k": how.top_k, "top_p": how.top_p}
        if how.temperature
        else {"do_sample": False}
    )
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=request.new_tokens,
        eos_token_id=list(request.stops) or None,
        pad_token_id=0,
        **drawing,
    )
    first = 0 if getattr(model.config, "is_encoder_decoder", False) else len(request.prompt)
    found = [int(token) for token in out[0, first:]]
    for token in found:
        request.on_token(token)
    return found
