"""What a reading of a GPU can be, whoever made it; what is out of these bounds is a placeholder."""


def is_heat(found: float) -> bool:
    """A temperature that a running GPU can have, in degrees Celsius."""
    return 0 < found < 200


def is_power(found: float) -> bool:
    """A GPU's power or its limit, in milliwatts: from one watt to ten kilowatts."""
    return 1000 <= found < 10_000_000
