"""Whether a model can be driven our way: its logits from our cache against its own, on tokens of its own.

Models differ in what they make of masks, positions and caches. None is trusted by its name.
"""

from typing import Any

import torch

from flatout.infer.generating.decoder import Decoder
from flatout.infer.generating.mode import Mode
from flatout.infer.generating.sampling import GREEDY

_PROMPT, _STEPS = 6, 3
# Of the spread of the logits: how far rounding in another order may move one.
_APART = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1.5e-1}


def refusal(model: Any, length: int) -> str:
    """Why this model is not for us with sequences of this length, or nothing."""
    return refusal_by_settings(model, length) or refusal_by_trial(model)


def refusal_by_trial(model: Any) -> str:
    """Why its logits are not what they should be our way, or nothing; holds for any length."""
    mode = Mode.of_caller(model)
    try:
        with mode.driving():
            own, ours = _both(model)
    except Exception as error:  # noqa: BLE001 - whatever it does not like
        said = (str(error).splitlines() or [""])[0]
        return f"it does not take our cache: {type(error).__name__}: {said}"
    allowed = _APART.get(mode.precision(model), _APART[torch.bfloat16]) * float(own.std())
    apart = float((own - ours).abs().max())
    if not apart <= allowed:
        return f"with our cache its logits are {apart:.2g} away from its own; rounding explains {allowed:.2g}"
    return ""


def refusal_by_settings(model: Any, length: int) -> str:
    """Why a model is not for us as it is set up at the moment, or nothing; looks at no number of it."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "generate"):
        return "it is no language model of transformers"
    if getattr(config, "is_encoder_decoder", False):
        return "it has an encoder"
    if model.training:
        return "it is in training mode"
    if len({one.device for one in model.parameters()}) > 1:
        return "its weights lie on several devices"
    text = config.get_text_config()
    return _by_its_layers(text, length) or _by_its_positions(model, text, length)


def _by_its_layers(text: Any, length: int) -> str:
    kinds = set(getattr(text, "layer_types", None) or ())
    if kinds - {"full_attention"}:
        return (
            f"some of its layers do not look at all tokens: {', '.join(sorted(kinds - {'full_attention'}))}"
        )
    window = None if kinds else getattr(text, "sliding_window", None)
    if window is not None and window < length:
        return f"its tokens look at the last {window} only, and {length} are asked for"
    return ""


def _by_its_positions(model: Any, text: Any, length: int) -> str:
    """Where positions are looked up in a table, one behind its end would stop all work on a GPU."""
    known = getattr(text, "max_position_embeddings", None)
    if known is None or length <= known:
        return ""
    tables = [
        one.num_embeddings
        for one in model.modules()
        if isinstance(one, torch.nn.Embedding) and one is not model.get_input_embeddings()
    ]
    # Some tables begin with a few places for padding.
    if any(known <= table < known + 8 for table in tables):
        return f"it knows {known} positions, and {length} are asked for"
    return ""


def _both(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of the same tokens: by one call as the model is, and step by step our way, in a row of two."""
    device = next(model.parameters()).device
    count = _PROMPT + _STEPS
    words = model.config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, words, (count,), generator=generator, device="cpu").tolist()
    own = model(torch.tensor([tokens], device=device)).logits[0, _PROMPT:].float()
    decoder = Decoder(model, 2, count + 1, compiled=False)
    for row, length in ((0, 2), (1, _PROMPT)):
        decoder.read(row, tokens[:length], GREEDY, count)
    ours = [decoder.fed(row=1, token=token) for token in tokens[_PROMPT:]]
    return own, torch.stack(ours)
