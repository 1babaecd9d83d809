"""What amdsmi answers about one GPU: placeholders taken out, errors put in words."""

import contextlib
import importlib
import io
from collections.abc import Callable
from typing import Any, TypeVar

from flatout.records.unknown import is_sentinel

T = TypeVar("T")

_EXCEPTIONS = (
    "AmdSmiException",
    "AmdSmiLibraryException",
    "AmdSmiParameterException",
    "AmdSmiKeyException",
    "AmdSmiBdfFormatException",
)
# amdsmi keeps activity, power and link width in 16 bits; all ones there means "not available".
_NONE_IN_16_BITS = 0xFFFF


class Placeholder(ValueError):
    """amdsmi answered, but with what it puts where it has no value."""

    def __init__(self, value: object) -> None:
        super().__init__(f"amdsmi returned a placeholder ({value!r}), not a value")


def load_amdsmi() -> Any:
    """Import amdsmi. Raises ImportError with a reason in words, whatever the import itself raised."""
    # Without libamd_smi.so the package prints to standard output, which would spoil `--json`, and
    # then dies of a KeyError; other releases die of an OSError or an AttributeError.
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            return importlib.import_module("amdsmi")
        except ModuleNotFoundError as error:
            if error.name == "amdsmi":
                raise ImportError("amdsmi is not installed") from error
            raise ImportError(f"amdsmi is installed but needs the module {error.name}") from error
        except Exception as error:
            raise ImportError(
                "amdsmi is installed but does not load (is libamd_smi.so there?)"
                f": {type(error).__name__}: {error}"
            ) from error


def errors_of(library: Any) -> tuple[type[Exception], ...]:
    """What a call into amdsmi can raise: its own exceptions, and those of its thin Python layer."""
    own = [getattr(library, name, None) for name in _EXCEPTIONS]
    return (
        *(kind for kind in own if isinstance(kind, type) and issubclass(kind, Exception)),
        ArithmeticError,
        AttributeError,
        LookupError,
        OSError,
        TypeError,
        ValueError,
    )


def describe(error: Exception) -> str:
    """The reason in an exception from amdsmi, on one line."""
    info = getattr(error, "err_info", "")
    if info:
        return " ".join(str(info).split())
    if isinstance(error, AttributeError):
        return f"this release of amdsmi lacks the function ({error})"
    if isinstance(error, KeyError):
        return f"this release of amdsmi does not report {error}"
    return " ".join(str(error).split()) or type(error).__name__


class Answers:
    """One GPU's answers. Each function is asked once; a failure is raised again for each of its fields."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library = library
        self._handle = handle
        self._errors = errors_of(library)
        self._kept: dict[tuple[str, tuple[Any, ...]], Any] = {}

    def get(self, function: str, *path: str, arguments: tuple[Any, ...] = ()) -> Any:
        """What `function` answers for this GPU, or the part of it that `path` leads to."""
        key = (function, arguments)
        if key not in self._kept:
            try:
                self._kept[key] = getattr(self._library, function)(self._handle, *arguments)
            except self._errors as error:
                self._kept[key] = error
        answer = self._kept[key]
        if isinstance(answer, Exception):
            raise answer
        for step in path:
            answer = answer[step]
        return answer

    def number(self, function: str, *path: str, arguments: tuple[Any, ...] = ()) -> float:
        """A number. Raises Placeholder for "N/A" and the all-ones values that stand for it."""
        value = self.get(function, *path, arguments=arguments)
        if value == _NONE_IN_16_BITS:
            raise Placeholder(value)
        return as_number(value)

    def whole(self, function: str, *path: str, scale: float = 1, arguments: tuple[Any, ...] = ()) -> int:
        """A number times `scale`, rounded."""
        return round(self.number(function, *path, arguments=arguments) * scale)

    def text(self, function: str, *path: str) -> str:
        """A text as it is. Raises Placeholder for "N/A" and for nothing."""
        value = self.get(function, *path)
        if not isinstance(value, str) or value.strip() in ("", "N/A"):
            raise Placeholder(value)
        return value.strip()

    def first(self, *ways: Callable[[], T]) -> T:
        """The first way that gives a value; the last way's failure is raised."""
        for way in ways[:-1]:
            try:
                return way()
            except self._errors:
                continue
        return ways[-1]()


def as_number(value: object) -> float:
    """A real number. Raises Placeholder for text ("N/A"), flags and the drivers' all-ones values."""
    if isinstance(value, bool) or not isinstance(value, int | float) or is_sentinel(value):
        raise Placeholder(value)
    return value
