"""Unknown is unknown: a field that could not be read is None, and `unknown` says why.

Records that hold readings carry a field `unknown: dict[field name, reason]` and call
`fill_reasons` from `__post_init__`, so a None without a reason cannot exist.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Container, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

T = TypeVar("T")

NOT_RECORDED = "not recorded"

# What drivers put where a number is missing: all ones, or the top of a signed range.
_SENTINELS = frozenset({0xFFFFFFFF, 0x7FFFFFFF, 0xFFFFFFFFFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 1 << 63})


def fill_reasons(
    record: Any, *, default: str = NOT_RECORDED, reasons: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Give every None field of a frozen record a reason, if nobody has given one: its own, or the default.

    A record that replaces another may know what that one did not: the reason goes.
    """
    empty = {name: getattr(record, name) is None for name in _field_names(type(record))}  # type: ignore[arg-type]
    kept = {name: why for name, why in record.unknown.items() if empty.get(name, True)}
    missing = {
        name: reasons.get(name, default) for name, is_empty in empty.items() if is_empty and name not in kept
    }
    if missing or len(kept) < len(record.unknown):
        object.__setattr__(record, "unknown", {**kept, **missing})


@functools.cache
def _field_names(kind: type) -> tuple[str, ...]:
    """Asked of every sample that is taken; dataclasses go through all their fields each time."""
    return tuple(field.name for field in dataclasses.fields(kind))


def is_sentinel(value: object) -> bool:
    """True for the placeholders that drivers return instead of "I don't know"."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if isinstance(value, float):
        return not math.isfinite(value) or value >= 2**63 * 0.999
    return value in _SENTINELS or value >= (1 << 63) - (1 << 20)


class Readings:
    """Collects the fields of one record: each a value, or a reason why there is none.

    `tolerated` are the exceptions that mean "this field is not to be had"; anything else is the
    caller's to handle. Exceptions are turned into words by `describe`.
    """

    def __init__(
        self, tolerated: tuple[type[Exception], ...], describe: Callable[[Exception], str] = str
    ) -> None:
        self.values: dict[str, Any] = {}
        self.unknown: dict[str, str] = {}
        self._tolerated = tolerated
        self._describe = describe

    def read(
        self,
        field: str,
        call: Callable[[], T],
        *,
        scale: float | None = None,
        valid: Callable[[T], bool] | None = None,
    ) -> T | None:
        """Read one field; a sentinel, an implausible value or a tolerated error leaves it unknown.

        `scale` turns the tool's unit into ours, after the look for sentinels; `valid` sees the result.
        """
        try:
            value = call()
        except self._tolerated as error:
            self.absent(field, self._describe(error))
            return None
        if value is None or is_sentinel(value):
            self.absent(field, "the driver returned a placeholder, not a value")
            return None
        if scale is not None:
            value = value * scale  # type: ignore[operator,assignment]
        if valid is not None and not valid(value):
            self.absent(field, f"the driver returned an impossible value ({value!r})")
            return None
        self.give(field, value)
        return value

    def absent(self, field: str, reason: str) -> None:
        """Record that `field` has no value, and why."""
        self.values[field] = None
        self.unknown[field] = reason

    def give(self, field: str, value: object) -> None:
        """Record a value that was read elsewhere; it also ends an earlier failure to read the field."""
        self.values[field] = value
        if value is not None:
            self.unknown.pop(field, None)

    def only(self, fields: Container[str]) -> "Readings":
        """The same readings, cut down to the named fields."""
        kept = Readings(self._tolerated, self._describe)
        kept.values = {name: value for name, value in self.values.items() if name in fields}
        kept.unknown = {name: reason for name, reason in self.unknown.items() if name in fields}
        return kept
