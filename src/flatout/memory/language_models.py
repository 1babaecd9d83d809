"""A language model's folder, read without torch: what its weights and one token in its cache take."""

import dataclasses
from pathlib import Path
from typing import Any

import msgspec

from flatout.memory.model_files import read_model_files
from flatout.records.errors import CallerMistake

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1}
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


def read_language_model(folder: Path) -> LanguageModel:
    """By config.json and the headers of the weights; raises CallerMistake."""
    whole = _config(folder)
    inner = whole.get("text_config")
    text: dict[str, Any] = inner if isinstance(inner, dict) else whole
    try:
        token_bytes, words = _token_bytes(text, whole)
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
    )


def _token_bytes(text: dict[str, Any], whole: dict[str, Any]) -> tuple[int, str]:
    width = _BYTES.get(
        str(text.get("dtype") or text.get("torch_dtype") or whole.get("torch_dtype") or "bfloat16"), 2
    )
    layers = int(text["num_hidden_layers"])
    kinds = text.get("layer_types") or []
    kept = sum(kind == "full_attention" for kind in kinds) if kinds else layers
    beside = f" ({layers - kept} others keep a part of the tokens only)" if kept < layers else ""
    if text.get("kv_lora_rank"):
        size = int(text["kv_lora_rank"]) + int(text.get("qk_rope_head_dim") or 0)
        return kept * size * width, f"{kept} layers x {size} latent numbers x {width} bytes{beside}"
    heads = int(text.get("num_key_value_heads") or text["num_attention_heads"])
    size = int(text.get("head_dim") or int(text["hidden_size"]) // int(text["num_attention_heads"]))
    return (
        2 * kept * heads * size * width,
        f"2 x {kept} layers x {heads} heads x {size} x {width} bytes{beside}",
    )


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
