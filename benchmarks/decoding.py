"""Tokens a second of a language model that answers one request: ours beside transformers' own ways.

    python -m benchmarks.decoding [--size 8b] [--tokens 256] [--ways flatout,eager,static] [--out FOLDER]

On a GPU. Weights are random and in bfloat16. A token reads every weight once: the device's bandwidth, as
measured here by a copy, bounds what is possible. Greedy tokens of ours are held against the model's own, and
logits given the same tokens.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.machine import write
from flatout.infer.generating import decoder as decoder_module
from flatout.infer.generating.decoder import Decoder
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


def ours(model: Any, prompt: list[int], tokens: int, device: str) -> dict[str, Any]:
    began = time.perf_counter()
    decoder = Decoder(model, 1, len(prompt) + tokens + 1)
    decoder.read(0, prompt, Sampling(), tokens)
    decoder.step("greedy", len(prompt) + 2)
    synchronize(device)
    ready_s = time.perf_counter() - began
    rates, answer = [], []
    for _ in range(3):
        decoder.read(0, prompt, Sampling(), tokens)
        answer = [decoder.emitted.clone()]
        synchronize(device)
        began = time.perf_counter()
        for number in range(tokens - 1):
            decoder.step("greedy", len(prompt) + number + 2)
            answer.append(decoder.emitted.clone())
        synchronize(device)
        rates.append((tokens - 1) / (time.perf_counter() - began))
    return {
        "tokens_per_s": max(rates),
        "all": rates,
        "ready_s": ready_s,
        "answer": torch.cat(answer).tolist(),
    }


def theirs(model: Any, prompt: list[int], tokens: int, device: str, **settings: Any) -> dict[str, Any]:
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
    ready_s = time.perf_counter() - began
    rates = []
    for _ in range(2):
        began = time.perf_counter()
        run(1)
        first_s = time.perf_counter() - began
        began = time.perf_counter()
        out = run(tokens)
        rates.append((tokens - 1) / (time.perf_counter() - began - first_s))
    return {
        "tokens_per_s": max(rates),
        "all": rates,
        "ready_s": ready_s,
        "answer": out[0, len(prompt) :].tolist(),
    }


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
    decoder_module.COMPILING |= json.loads(chosen.compiler)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = model_of(chosen.size, device)
    prompt = torch.randint(
        1, SIZES[chosen.size][-1], (_PROMPT,), generator=torch.Generator().manual_seed(1)
    ).tolist()
    bytes_per_s = copied_per_s(device)
    result: dict[str, Any] = {
        "size": chosen.size,
        "tokens": chosen.tokens,
        "compiler": decoder_module.COMPILING,
        "read_bytes": read_bytes(model),
        "copied_bytes_per_s": bytes_per_s,
        "bound_tokens_per_s": bytes_per_s / read_bytes(model),
    }
    out = str(Path(chosen.out) / f"decoding-{chosen.size}.json") if chosen.out else None
    ways = {
        "flatout": lambda: ours(model, prompt, chosen.tokens, device),
        "eager": lambda: theirs(model, prompt, chosen.tokens, device),
        "static": lambda: theirs(model, prompt, chosen.tokens, device, cache_implementation="static"),
    }
    for way in chosen.ways.split(","):
        result[way] = ways[way]()
        said = {key: value for key, value in result[way].items() if key != "answer"}
        print(
            way, said, f"{said['tokens_per_s'] / result['bound_tokens_per_s']:.2f} of the bound", flush=True
        )
        write(f"decoding-{chosen.size}", result, out)
    if "flatout" in result:
        result["logits"] = logits_apart(model, prompt, result["flatout"]["answer"][:32], device)
        print(result["logits"])
    if "flatout" in result and "eager" in result:
        pairs = zip(result["flatout"]["answer"], result["eager"]["answer"], strict=True)
        same = [one == other for one, other in pairs]
        result["same_until"] = same.index(False) if False in same else len(same)
        print("the same tokens until", result["same_until"])
    write(f"decoding-{chosen.size}", result, out)


if __name__ == "__main__":
    main()
