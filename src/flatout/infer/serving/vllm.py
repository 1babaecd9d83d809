"""The command that starts vLLM: GPUs, memory, context and texts at once, each with its reason."""

from pathlib import Path

from flatout.memory.language_models import LanguageModel
from flatout.records.errors import EnvironmentProblem
from flatout.records.serving import EnginePlan, Setting
from flatout.records.words import memory_size

# Of a GPU's memory for vLLM, as it has it by default: the rest is the driver's, and others'.
_SHARE = 0.9
# Of that, for activations and captured graphs; vLLM measures it itself when it starts.
_WORKING = 0.08
# Weights may take so much of it before they are spread over more GPUs: a short cache makes texts wait.
_WEIGHTS = 0.6
_USUAL_CONTEXT = 8192
_MOST_TEXTS = 256
# Texts are of all lengths: on average they fill half of their context.
_FILLED = 0.5
_SHORTEST = 512


def vllm_plan(
    folder: Path,
    model: LanguageModel,
    *,
    gpu: str,
    gpu_bytes: int,
    gpus: int,
    host: str,
    port: int,
    context: int | None,
    texts: int | None,
) -> EnginePlan:
    """Plan it; raises EnvironmentProblem where it does not fit."""
    usable = gpu_bytes * (_SHARE - _WORKING)
    spread, why_spread = _spread(model, usable, gpu, gpus)
    room = usable * spread - model.weight_bytes
    copies = max(1, spread // model.cache_parts)
    tokens = int(room // (model.token_bytes * copies))
    if tokens < min(_SHORTEST, context or _SHORTEST):
        left = memory_size(max(room, 0))
        raise EnvironmentProblem(
            f"{memory_size(model.weight_bytes)} of weights leave {left} of {spread} x {gpu} for the cache",
            expected=f"room for {context or _SHORTEST} tokens of {memory_size(model.token_bytes)}",
            remedy="more or larger GPUs (--gpu), or a quantized model",
        )
    length, why_length = _length(model, tokens, context)
    count = texts or max(1, min(_MOST_TEXTS, int(tokens // (length * _FILLED))))
    why_count = (
        "as asked" if texts else f"{tokens:,} tokens fit, and texts fill half of {length:,} on average"
    )
    settings = (
        Setting("--tensor-parallel-size", str(spread), why_spread),
        Setting("--gpu-memory-utilization", str(_SHARE), f"{memory_size(gpu_bytes * _SHARE)} of each {gpu}"),
        Setting("--max-model-len", str(length), why_length),
        Setting("--max-num-seqs", str(count), why_count),
    )
    words = [word for one in settings for word in (one.name, one.value)]
    return EnginePlan(
        command=("vllm", "serve", str(folder), "--host", host, "--port", str(port), *words),
        settings=settings,
        weight_bytes=model.weight_bytes,
        token_bytes=model.token_bytes,
        token_words=model.words,
        cache_tokens=tokens,
        gpu=gpu,
        gpus=spread,
    )


def _spread(model: LanguageModel, usable: float, gpu: str, gpus: int) -> tuple[int, str]:
    able = [count for count in (1, 2, 4, 8, 16) if count <= gpus and model.heads % count == 0]
    weights = memory_size(model.weight_bytes)
    for count in able:
        if model.weight_bytes <= _WEIGHTS * usable * count:
            where = f"one {gpu}" if count == 1 else f"{count} x {gpu}"
            return count, f"{weights} of weights leave room for the cache on {where}"
    return able[-1], f"{weights} of weights; all {able[-1]} that are there and divide {model.heads} heads"


def _length(model: LanguageModel, tokens: int, context: int | None) -> tuple[int, str]:
    wanted = context or min(model.positions or _USUAL_CONTEXT, _USUAL_CONTEXT)
    if tokens < wanted:
        return tokens, f"no more fits; {wanted:,} were wanted"
    if context:
        return context, "as asked"
    if model.positions and model.positions > wanted:
        return wanted, f"the model knows {model.positions:,}; more is possible with --context"
    return wanted, "what the model knows"
