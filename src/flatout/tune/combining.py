"""Which levers may stand together, and in which order."""

from collections.abc import Iterable

from flatout.levers.catalogue import BY_ID
from flatout.records.plan import Choice
from flatout.tune.arms import Arm

# In the ladder and in plans: what is cheap and certain first, the compiler last but for what needs it.
_RANKS = (
    "loader",
    "debug-modes",
    "no-gradients",
    "cpu-threads",
    "thread-affinity",
    "garbage-collector",
    "allocator",
    "device-prefetch",
    "tf32",
    "bf16",
    "fp16",
    "bf16-parameters",
    "channels-last",
    "cudnn-autotune",
    "fused-optimizer",
    "optimizer-8bit",
    "hf-switches",
    "liger",
    "attention",
    "sdpa-backend",
    "linear-cross-entropy",
    "hf-checkpointing",
    "block-checkpointing",
    "activation-offload",
    "optimizer-offload",
    "activation-budget",
    "int8-weights",
    "int4-weights",
    "fp8-weights",
    "compile",
    "fp8",
)


def ordered(choices: Iterable[Choice]) -> Arm:
    """As in the ladder and in plans."""
    return tuple(sorted(choices, key=lambda choice: _RANKS.index(choice.id)))


def conflict(one: Choice, other: Choice) -> bool:
    """Whether two levers must not be on together."""
    return other.id in BY_ID[one.id].conflicts or one.id in BY_ID[other.id].conflicts
