"""The few sizes that inputs of many are filled up to: of a batch, and of a sequence."""

import math

# Sizes of batches at most; each is a graph to capture, and one of the compiler's entries at the worst.
MOST_SIZES = 8
# Lengths are padded to the next of so many between two powers of two: a fifth is wasted at most.
_STEPS = 4


def halves(size: int) -> tuple[int, ...]:
    """A size, its half and so on, and 1; at most as many as there may be."""
    found = [size]
    while found[-1] > 1 and len(found) < MOST_SIZES - 1:
        found.append((found[-1] + 1) // 2)
    return tuple(sorted({*found, 1}))


def next_length(length: int) -> int:
    """The length that this one is padded to."""
    if length <= 2 * _STEPS:
        return 1 << (length - 1).bit_length()
    step = 1 << (math.ceil(math.log2(length)) - 1) >> int(math.log2(_STEPS))
    return -(-length // step) * step
