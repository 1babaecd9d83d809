"""A language model's folder, read without torch: what its weights and one token in its cache take."""

import dataclasses
from pathlib import Path
from typing import Any

import msgspec

from flatout.memory.model_files import read_model_files
from flatout.records.errors import CallerMistake

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1}
# Kinds of layers, as configs name them.
_KEEP_ALL = ("full_attention", "attention")
_KEEP_THE_LAST = ("sliding_attention", "chunked_attention")
_LONGEST_CONFIG = 10_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModel:
    """What planning needs to know."""

    weight_bytes: int
    # In the cache of keys and values, over all layers that keep every token.
    token_bytes: int
    # Its longest sequence; None where the config does not say.
    positions: int | None
    heads: int
    # How the bytes of a token come about.
    words: str
    # Over how many GPUs a token's cache can be divided: more of them hold copies.
    cache_parts: int


def read_language_model(folder: Path) -> LanguageModel:
    """By config.json and the headers of the weights; raises CallerMistake."""
    whole = _config(folder)
    inner = whole.get("text_config")
    text: dict[str, Any] = inner if isinstance(inner, dict) else whole
    try:
        token_bytes, cache_parts, words = _cache(text, whole)
        heads = int(text["num_attention_heads"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise CallerMistake(
            f"{folder / 'config.json'} does not say {error}",
            expected="a decoder with attention: layers, heads, hidden size",
            remedy="start vLLM by hand for other kinds of models",
        ) from error
    positions = text.get("max_position_embeddings")
    return LanguageModel(
        weight_bytes=sum(file.stored_bytes for file in read_model_files([folder])),
        token_bytes=token_bytes,
        positions=positions if isinstance(positions, int) else None,
        heads=heads,
        words=words,
        cache_parts=cache_parts,
    )


def _cache(text: dict[str, Any], whole: dict[str, Any]) -> tuple[int, int, str]:
    """What a token takes in it, into how many parts that can go, and how it comes about."""
    given = (one.get(name) for one in (text, whole) for name in ("dtype", "torch_dtype"))
    width = _BYTES.get(str(next(filter(None, given), "bfloat16")), 2)
    layers = int(text["num_hidden_layers"])
    kept = _layers_that_keep(text.get("layer_types") or [], layers)
    beside = f" ({layers - kept} others keep a part of the tokens only)" if kept < layers else ""
    if text.get("kv_lora_rank"):
        size = int(text["kv_lora_rank"]) + int(text.get("qk_rope_head_dim") or 0)
        # Of all heads: it is no part of any.
        return kept * size * width, 1, f"{kept} layers x {size} latent numbers x {width} bytes{beside}"
    heads = int(text.get("num_key_value_heads") or text["num_attention_heads"])
    size = int(text.get("head_dim") or int(text["hidden_size"]) // int(text["num_attention_heads"]))
    return (
        2 * kept * heads * size * width,
        heads,
        f"2 x {kept} layers x {heads} heads x {size} x {width} bytes{beside}",
    )


def _layers_that_keep(kinds: list[str], layers: int) -> int:
    """Those that keep every token; where there is none, those that keep the last ones."""
    kept = layers
    if kinds:
        kept = sum(kind in _KEEP_ALL for kind in kinds) or sum(kind in _KEEP_THE_LAST for kind in kinds)
    if kept < 1:
        raise ValueError("of any layer that it keeps keys and values")
    return kept


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        if path.stat().st_size > _LONGEST_CONFIG:
            raise ValueError("it is too long")
        found = msgspec.json.decode(path.read_bytes())
        if not isinstance(found, dict):
            raise TypeError("it is no object")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise CallerMistake(
            f"{path} cannot be read: {error}",
            expected="a folder with a language model of Hugging Face",
            remedy="hf download OWNER/NAME --local-dir FOLDER",
        ) from error
    return found
