"""Models of transformers, known by their class: nothing of it is imported here."""

from collections.abc import Iterable
from typing import Any


def is_pretrained(module: Any) -> bool:
    """Whether this is a model of transformers, or one of a class derived from them."""
    return any(
        kind.__name__ == "PreTrainedModel" and kind.__module__.partition(".")[0] == "transformers"
        for kind in type(module).__mro__
    )


def pretrained(roots: Iterable[Any]) -> list[Any]:
    """Those of the roots that are, also where something for several GPUs is wrapped around one."""
    inner = (vars(root).get("_modules", {}).get("module", root) for root in roots)
    return [one for one in inner if is_pretrained(one)]


def describe(roots: Iterable[Any]) -> dict[str, Any]:
    """What levers need to know of them, as plain values; of the first, where there are several."""
    models = pretrained(roots)
    first = models[0] if models else None
    config = getattr(first, "config", None)
    implementation = getattr(config, "_attn_implementation", None)
    return {
        "hf_attention": str(implementation) if implementation is not None else None,
        "hf_supports_sdpa": bool(getattr(first, "_supports_sdpa", False)),
        "hf_model_type": str(getattr(config, "model_type", "")) or None,
        "hf_checkpointing": {
            "supported": bool(getattr(first, "supports_gradient_checkpointing", False)),
            "on": recomputes(first),
        }
        if first is not None
        else None,
    }


# What recomputing activations is called, newest name first: transformers warns of the old one, to its users.
_RECOMPUTING = ("activation_checkpointing", "gradient_checkpointing")


def recomputes(model: Any) -> bool:
    """Whether a model keeps the inputs of its blocks alone, by its own switch."""
    name = _known_as(model, "is_{}")
    return bool(name and getattr(model, name))


def recompute(model: Any, *, on: bool) -> None:
    """Turn that switch."""
    name = _known_as(model, "{}_enable" if on else "{}_disable")
    if name:
        getattr(model, name)()


def _known_as(model: Any, word: str) -> str:
    """The newest of its names that the model has; the others are not asked for."""
    names = (word.format(name) for name in _RECOMPUTING)
    return next((name for name in names if hasattr(model, name)), "")
