"""Which of the programs that a script starts are ones that the redirection is not in."""

import os
import posix
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flatout.records.session import SESSION_VARIABLE

# Program, words and environment, as each way of starting a program tells them.
STARTING: dict[str, Callable[[tuple[Any, ...]], tuple[Any, Sequence[Any], Mapping[Any, Any] | None]]] = {
    "subprocess.Popen": lambda args: (args[0], _words(args[1]), args[3]),
    "os.exec": lambda args: (args[0], args[1], args[2]),
    "os.posix_spawn": lambda args: (args[0], args[1], args[2]),
    "os.system": lambda args: ("sh", ("sh", "-c", args[0]), None),
    "pty.spawn": lambda args: (_words(args[0])[0], _words(args[0]), None),
}
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
_PYTHON = re.compile(r"(python|pypy)[\d.]*t?$")


def _words(command: Any) -> Sequence[Any]:
    return [command] if isinstance(command, str | bytes) or hasattr(command, "__fspath__") else list(command)


def unseen_program(program: str, words: list[str], environment: Mapping[Any, Any] | None) -> str | None:
    """The program's name, unless it is a Python that this redirection will be in as well."""
    name = os.path.basename(program)  # noqa: PTH119
    if name in _SHELLS and "-c" in words[:-1]:
        command = words[words.index("-c") + 1].split()
        first = os.path.basename(command[0]) if command else name  # noqa: PTH119
        return name if _PYTHON.match(first) else first
    if not (_PYTHON.match(name) or _is_python_script(program)):
        return name
    if environment is not None and SESSION_VARIABLE in os.environ:
        given = {os.fsdecode(key) for key in environment}
        if SESSION_VARIABLE not in given:
            return f"{name} (without our environment)"
    for word in words[1:]:
        if not word.startswith("-") or word in ("-c", "-m", "-"):
            return None
        if not word.startswith("--") and set("SIE") & set(word):  # no site, no sitecustomize, no PYTHONPATH
            return f"{name} {word}"
    return None


def _is_python_script(program: str) -> bool:
    """Whether a program such as torchrun is a script for Python."""
    folders = [""] if "/" in program else os.environ.get("PATH", "").split(os.pathsep)
    for folder in folders:
        path = f"{folder}/{program}" if folder else program
        try:
            script = posix.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            return re.match(rb"#!.*python", posix.read(script, 256)) is not None
        except OSError:
            return False
        finally:
            posix.close(script)
    return False
