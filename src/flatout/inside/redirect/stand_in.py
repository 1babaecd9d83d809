"""Objects that stand in the place of built-in functions, and what happens where one of them fails."""

import errno
import functools
import threading
from collections.abc import Callable
from typing import Any, NoReturn


class Breach(threading.local):
    """Tells of a write that must not be; and steps out of the way of whoever records it, in that thread.

    Recording must work even where the breach is a failure of ours: then the real functions are called.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self.under_way = False

    def __call__(self, what: str) -> NoReturn:
        """Have it recorded, and refuse."""
        self.under_way = True
        try:
            self._tell(what)
        finally:
            self.under_way = False
        raise PermissionError(errno.EPERM, f"a trial may not: {what}")


class Theirs(Exception):
    """What the real function made of the user's own arguments; goes to the user as it is."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def call_real(real: Callable[..., Any], given: object, *args: Any, **kwargs: Any) -> Any:
    """Call the real function on a path of our choice, and let its errors speak of the path that was given."""
    try:
        return real(*args, **kwargs)
    except OSError as error:
        if given is not None:
            error.filename = given
        raise
    except Exception as error:
        raise Theirs(error) from error


class StandIn:
    """In the place of a built-in function: an object, for in a class a function would become a method."""

    def __init__(self, real: Any, call: Callable[..., Any], breach: Breach) -> None:
        self.__name__: str
        functools.update_wrapper(self, real)
        self._real, self._call, self._breach = real, call, breach
        if self.__module__ in ("posix", "_io"):  # pickled by name, and there the name means the real one
            self.__module__ = {"posix": "os", "_io": "io"}[self.__module__]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call ours in the place of the real one."""
        try:
            return self._call(*args, **kwargs)
        except (OSError, RecursionError):  # a script may run out of stack in here as well as elsewhere
            raise
        except Theirs as theirs:
            error = theirs.error
        except Exception as unexpected:  # a failure of ours must not pass for protection
            if isinstance(unexpected, TypeError) and not self._accepts(args, kwargs):
                raise
            if self._breach.under_way:
                return self._real(*args, **kwargs)
            self._breach(f"{self.__name__}{args}: {type(unexpected).__name__}: {unexpected}")
        raise error

    def _accepts(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        import inspect

        try:
            inspect.signature(self._call).bind(*args, **kwargs)
        except TypeError:
            return False
        return True

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(self._real, type) and isinstance(instance, self._real)

    def __reduce__(self) -> str:
        return self.__name__

    def __repr__(self) -> str:
        return repr(self._real)
