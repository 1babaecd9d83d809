"""Tokens a second of a language model that answers one request: ours beside transformers' own ways.

    python -m benchmarks.decoding [--size 8b] [--tokens 256] [--ways flatout,eager,static] [--out FOLDER]

On a GPU. Weights are random and in bfloat16. A token reads every weight once: the device's bandwidth, as
measured here by a copy, bounds what is possible. Greedy tokens of ours are held against the model's own, and
logits given the same tokens. "tokens_per_s" is of steps alone; "answered_per_s" of requests, with a host that
reads every token. The file is written anew whenever something is known; what fails is written down, too.
"""

import argparse
import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.machine import write
from flatout.infer.generating import decoder as decoder_module
from flatout.infer.generating.decoder import Decoder
from flatout.infer.generating.generator import Generator, Request
from flatout.infer.generating.sampling import Sampling

# Width, of the hidden layer, layers, heads, heads of keys and values, words.
SIZES = {
    "tiny": (64, 128, 2, 4, 2, 320),
    "1b": (2048, 8192, 16, 32, 8, 128256),
    "8b": (4096, 14336, 32, 32, 8, 128256),
}
_PROMPT = 32


def model_of(size: str, device: str) -> Any:
    width, hidden, layers, heads, shared, words = SIZES[size]
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=shared,
        vocab_size=words,
        max_position_embeddings=8192,
        tie_word_embeddings=size == "1b",
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def copied_per_s(device: str) -> float:
    """Bytes read and written a second by a copy, the best of some."""
    if device != "cuda":
        return float("nan")
    source = torch.empty(1 << 30, dtype=torch.int8, device=device)
    target, best = torch.empty_like(source), 0.0
    for _ in range(10):
        synchronize(device)
        began = time.perf_counter()
        target.copy_(source)
        synchronize(device)
        best = max(best, 2 * source.nbytes / (time.perf_counter() - began))
    return best


def read_bytes(model: Any) -> int:
    """What one token must read of the weights: all but the table of words, of which it reads a row."""
    table = model.get_input_embeddings().weight
    tied = model.get_output_embeddings().weight is table
    return sum(one.nbytes for one in model.parameters()) - (0 if tied else table.nbytes)


def ours(model: Any, prompt: list[int], tokens: int, device: str, found: dict[str, Any]) -> Iterator[None]:
    """Fills `found`, and comes up for air whenever something is in it."""
    began = time.perf_counter()
    generator = Generator(model, rows=1, length=len(prompt) + tokens + 1)
    decoder = generator.decoder
    found["attention"], found["room_s"] = decoder.attention, time.perf_counter() - began
    yield
    decoder.read(0, prompt, Sampling(), tokens)
    decoder.prepare(("greedy",))
    synchronize(device)
    found["ready_s"] = time.perf_counter() - began
    found["all"] = []
    for _ in range(3):
        decoder.read(0, prompt, Sampling(), tokens)
        answer = [decoder.emitted.clone()]
        synchronize(device)
        began = time.perf_counter()
        for number in range(tokens - 1):
            decoder.step("greedy", len(prompt) + number + 2)
            answer.append(decoder.emitted.clone())
        synchronize(device)
        found["all"].append((tokens - 1) / (time.perf_counter() - began))
        found["tokens_per_s"] = max(found["all"])
        found["answer"] = torch.cat(answer).tolist()
        yield
    began = time.perf_counter()
    generator.generate([Request(prompt, tokens)])
    found["answered_per_s"] = tokens / (time.perf_counter() - began)
    yield
    if device == "cuda":
        found["kernels_us"] = kernels_of(lambda: decoder.step("greedy", len(prompt) + 2))


def kernels_of(step: Callable[[], None], steps: int = 5) -> dict[str, list[float]]:
    """By kernel: how often in a step, and microseconds of a step, those that take the longest first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    often: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    for event in seen.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            often[event.name[:100]] += 1
            taken[event.name[:100]] += event.self_device_time_total
    return {name: [often[name] / steps, taken[name] / steps] for name, _ in taken.most_common(25)}


def theirs(
    model: Any, prompt: list[int], tokens: int, device: str, found: dict[str, Any], **settings: Any
) -> Iterator[None]:
    """The same of transformers' own `generate`."""
    ids = torch.tensor([prompt], device=device)

    def run(count: int) -> Any:
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            **settings,
        )
        synchronize(device)
        return out

    began = time.perf_counter()
    for _ in range(3 if settings else 1):
        run(8 if not settings else tokens)
    found["ready_s"] = time.perf_counter() - began
    found["all"] = []
    for _ in range(2):
        began = time.perf_counter()
        run(1)
        first_s = time.perf_counter() - began
        began = time.perf_counter()
        out = run(tokens)
        found["all"].append((tokens - 1) / (time.perf_counter() - began - first_s))
        found["tokens_per_s"] = max(found["all"])
        found["answer"] = out[0, len(prompt) :].tolist()
        yield


@torch.no_grad()
def logits_apart(model: Any, prompt: list[int], answer: list[int], device: str) -> dict[str, float]:
    """Given the same tokens: how far our logits are from the model's own."""
    ids = torch.tensor([prompt + answer[:-1]], device=device)
    own = model(ids).logits[0, len(prompt) - 1 :].float()
    decoder = Decoder(model, 1, len(prompt) + len(answer) + 1, compiled=False)
    decoder.read(0, prompt, Sampling(), len(answer))
    apart = 0.0
    for number, token in enumerate(answer[:-1]):
        apart = max(apart, float((decoder.fed(0, token) - own[number + 1]).abs().max()))
    return {"most": apart, "spread_of_logits": float(own.std())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="8b")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--ways", default="flatout,eager,static")
    parser.add_argument("--compiler", default="{}", help="more options of the compiler, as JSON, to try them")
    parser.add_argument("--out", help="a folder for the result file")
    chosen = parser.parse_args()
    more = json.loads(chosen.compiler)
    decoder_module.COMPILING |= more
    device = "cuda" if torch.cuda.is_available() else "cpu"
    began = time.perf_counter()
    model = model_of(chosen.size, device)
    synchronize(device)
    print(f"{chosen.size}: weights after {time.perf_counter() - began:.1f} s", flush=True)
    prompt = torch.randint(
        1, SIZES[chosen.size][-1], (_PROMPT,), generator=torch.Generator().manual_seed(1)
    ).tolist()
    bytes_per_s = copied_per_s(device)
    result: dict[str, Any] = {
        "size": chosen.size,
        "tokens": chosen.tokens,
        "compiler": more,
        "read_bytes": read_bytes(model),
        "copied_bytes_per_s": bytes_per_s,
        "bound_tokens_per_s": bytes_per_s / read_bytes(model),
    }
    out = str(Path(chosen.out) / f"decoding-{chosen.size}.json") if chosen.out else None
    given = (model, prompt, chosen.tokens, device)
    ways: dict[str, Callable[[dict[str, Any]], Iterator[None]]] = {
        "flatout": lambda found: ours(*given, found),
        "eager": lambda found: theirs(*given, found),
        "static": lambda found: theirs(*given, found, cache_implementation="static"),
    }
    for way in chosen.ways.split(","):
        found = result[way] = {}
        with noted(found):
            for _ in ways[way](found):
                write(f"decoding-{chosen.size}", result, out)
        said = {key: value for key, value in found.items() if key not in ("answer", "kernels_us")}
        share = found.get("tokens_per_s", 0.0) / result["bound_tokens_per_s"]
        print(way, said, f"{share:.2f} of the bound", flush=True)
        for name, (often, taken) in found.get("kernels_us", {}).items():
            print(f"  {taken:8.1f} us a step, {often:5.1f} times: {name}", flush=True)
        write(f"decoding-{chosen.size}", result, out)
    compared(result, *given)
    write(f"decoding-{chosen.size}", result, out)


@contextlib.contextmanager
def noted(found: dict[str, Any]) -> Iterator[None]:
    """What one way does not survive, the next ones do."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        found["failed"] = f"{type(error).__name__}: {error}"[:500]
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def compared(result: dict[str, Any], model: Any, prompt: list[int], _tokens: int, device: str) -> None:
    """Our answer beside the model's own."""
    own, others = (result.get(way, {}).get("answer") for way in ("flatout", "eager"))
    if own:
        with noted(result):
            result["logits"] = logits_apart(model, prompt, own[:32], device)
            print(result["logits"], flush=True)
    if own and others:
        same = [one == other for one, other in zip(own, others, strict=True)]
        result["same_until"] = same.index(False) if False in same else len(same)
        print("the same tokens until", result["same_until"], flush=True)


if __name__ == "__main__":
    main()
