"""What MFU others have reported for the kind of model that a job trains: a yardstick, not a limit."""

from collections.abc import Collection

_ATTENTION = ("aten._softmax", "scaled_dot_product", "flex_attention")
_CONVOLUTION = "convolution"
# "PaLM: Scaling Language Modeling with Pathways" (2022), its table of model FLOPs utilization.
_TRANSFORMERS = (
    "of large transformers on thousands of devices, 21 % (GPT-3), 30 % (MT-NLG), 33 % (Gopher) and 46 % "
    "(PaLM) were reported"
)


def typical_mfu(operators: Collection[str]) -> str:
    """By the operators of a step; nothing for a kind of model of which we know no figures with a source."""
    attends = any(word in name for name in operators for word in _ATTENTION)
    return _TRANSFORMERS if attends and not any(_CONVOLUTION in name for name in operators) else ""
