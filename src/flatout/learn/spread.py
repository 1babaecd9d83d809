"""What each strategy moves and holds, as arithmetic: for a lesson's small model, and for the reader's own."""

import dataclasses

# Weights, gradients and AdamW's two averages, each in fp32.
TRAINING_BYTES = 16
# What travels in a mixed-precision training.
_TRAVELS_AS = 2
_OPERATIONS = 6
# Layers for each unit of width, as in models that people train: 4096 wide is 32 deep.
_WIDTH_OVER_DEPTH = 128
_WEIGHTS_OF_A_BLOCK = 12
# Sums of activations over ranks: two in a block's forward pass, two in its backward pass.
SUMS_OF_A_BLOCK = 4


@dataclasses.dataclass(frozen=True)
class Shape:
    """A model and a step, in so far as traffic depends on them."""

    parameters: float
    width: float
    layers: float
    # Of all GPUs together.
    tokens: float
    bytes_a_number: int = _TRAVELS_AS


@dataclasses.dataclass(frozen=True)
class Moved:
    """One strategy: what each GPU sends in a step, and what it holds between steps, in bytes."""

    strategy: str
    sent_bytes: float
    held_bytes: float


def shape_of(parameters: float, tokens: float) -> Shape:
    """A transformer of so many parameters, as wide and deep as such models are."""
    width = (parameters * _WIDTH_OVER_DEPTH / _WEIGHTS_OF_A_BLOCK) ** (1 / 3)
    return Shape(parameters=parameters, width=width, layers=width / _WIDTH_OVER_DEPTH, tokens=tokens)


def moved(shape: Shape, ranks: int) -> tuple[Moved, ...]:
    """What each strategy sends, with rings: every rank sends its share of all but its own part."""
    others = (ranks - 1) / ranks
    weights = shape.parameters * shape.bytes_a_number
    activations = shape.tokens * shape.width * shape.bytes_a_number
    whole = TRAINING_BYTES * shape.parameters
    return (
        Moved("ddp", 2 * others * weights, whole),
        Moved("fsdp", 3 * others * weights, whole / ranks),
        Moved("tensor", 2 * others * SUMS_OF_A_BLOCK * shape.layers * activations, whole / ranks),
        Moved("pipeline", 2 * others * activations, whole / ranks),
    )


def compute_seconds(shape: Shape, ranks: int, flops_per_s: float) -> float:
    """A step's arithmetic alone, at a peak that no job reaches: the least that it can take."""
    return _OPERATIONS * shape.parameters * shape.tokens / ranks / flops_per_s
