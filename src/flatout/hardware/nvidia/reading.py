"""Reads single NVML values: old drivers get the older call, and a refusal becomes a reason in words."""

from collections.abc import Callable
from typing import Any, TypeVar

from flatout.hardware.nvidia.session import (
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    NO_PERMISSION,
    NOT_SUPPORTED,
    error_code,
)
from flatout.records.unknown import Readings

T = TypeVar("T")

_REASONS = {
    NOT_SUPPORTED: "this GPU or driver does not support it",
    FUNCTION_NOT_FOUND: "the installed driver is too old for it",
    NO_PERMISSION: "this user may not read it",
    INVALID_ARGUMENT: "this GPU does not have it",
}


def nvml_readings(library: Any) -> Readings:
    """A collector that leaves a field unknown when NVML refuses it."""
    return Readings(tolerated=(library.NVMLError, AttributeError), describe=describe_error)


def describe_error(error: Exception) -> str:
    """An NVML error as a reason that a user understands."""
    if isinstance(error, AttributeError):
        return "the installed nvidia-ml-py is too old for it"
    return _REASONS.get(error_code(error), f"NVML answered: {error}")


def first_of(*calls: Callable[[], T]) -> T:
    """The answer of the first call that this driver has; newer calls come first."""
    for call in calls[:-1]:
        try:
            return call()
        except AttributeError:
            continue
        except Exception as error:
            if error_code(error) != FUNCTION_NOT_FOUND:
                raise
    return calls[-1]()


def is_plausible_heat(celsius: int) -> bool:
    """A temperature, or a threshold of one, that a GPU can have."""
    return 0 < celsius < 150


def text(value: str | bytes) -> str:
    """NVML's strings; older bindings return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
