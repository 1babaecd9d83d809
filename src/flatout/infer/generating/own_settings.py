"""What a model's generation_config asks for: where to end, how to draw, and what we know nothing of."""

from typing import Any

from flatout.infer.generating.sampling import Sampling

# Settings that change which token comes next, with the values at which they do not.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "repetition_penalty": (1.0,),
    "no_repeat_ngram_size": (0,),
    "bad_words_ids": ([],),
    "sequence_bias": ({},),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "exponential_decay_length_penalty": (),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "guidance_scale": (1.0,),
    "num_beams": (1,),
    "penalty_alpha": (0.0,),
}
# The same, where tokens are drawn.
_PLAIN_DRAWS: dict[str, tuple[Any, ...]] = {
    "min_p": (0.0,),
    "typical_p": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
}


def own_stops(model: Any) -> tuple[int, ...]:
    """The tokens at which it ends."""
    config = getattr(model, "generation_config", None) or getattr(model, "config", None)
    found = getattr(config, "eos_token_id", None)
    return () if found is None else (found,) if isinstance(found, int) else tuple(found)


def own_sampling(model: Any) -> Sampling | None:
    """How it draws, where it does."""
    own = getattr(model, "generation_config", None)
    if own is None or not getattr(own, "do_sample", False):
        return None
    # Newer ones leave unset what their `generate` fills in.
    usual: dict[str, Any] = getattr(own, "_get_default_generation_params", dict)()
    top_k = usual.get("top_k") if own.top_k is None else own.top_k
    return Sampling(temperature=own.temperature or 1.0, top_k=top_k or 0, top_p=own.top_p or 1.0)


def unheeded(model: Any, *, draws: bool = True) -> tuple[str, ...]:
    """What the model's own generation_config asks for and our draws know nothing of, as `name=value`."""
    own = getattr(model, "generation_config", None)
    plain = {**_PLAIN, **(_PLAIN_DRAWS if draws else {})}
    found = {name: getattr(own, name, None) for name in plain}
    return tuple(f"{name}={value}" for name, value in found.items() if value not in (None, *plain[name]))
