"""Waits, in any Python process that inherits FLATOUT_SESSION, for torch to be imported, and arms the session.

Imported by the `.pth` file and by our `sitecustomize`, before the user's first line. It must never raise and
never print: whatever goes wrong here would look like the user's own script breaking.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from flatout.records.session import SESSION_VARIABLE

# Programs that import torch but train nothing; their children inherit the variable and are armed.
_SUPERVISORS = ("torchrun", "accelerate", "deepspeed")
_SUPERVISOR_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "torch._inductor.compile_worker",
)


class TorchWatcher(importlib.abc.MetaPathFinder):
    """Stands first in the import system until torch has been imported, then steps aside."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """Find torch as everyone else would, and have its loader tell us when it is done."""
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            _call_after_load(spec.loader)
        return spec


def _call_after_load(loader: Any) -> None:
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module  # the class's own again: nobody finds our fingers on torch's loader
        load(module)
        _arm(module)

    loader.exec_module = exec_module


def _arm(torch: ModuleType) -> None:
    try:
        from flatout.inside.session import start_session

        start_session(torch, os.environ[SESSION_VARIABLE])
    except Exception as error:  # noqa: BLE001 - a session that cannot start must not stop the job
        _note_failure(error)


def _note_failure(error: Exception) -> None:
    """Leave a word beside the order, where there is one; the parent reads it."""
    if not os.path.exists(os.environ[SESSION_VARIABLE]):  # noqa: PTH110 - as above
        return
    try:
        with open(f"{os.environ[SESSION_VARIABLE]}.failed", "a") as file:  # noqa: PTH123
            file.write(f"{os.getpid()} {type(error).__name__}: {error}\n")
    except OSError:
        return


def is_supervisor(arguments: Sequence[str]) -> bool:
    """Whether this process only starts others: torchrun, accelerate launch, a compile worker.

    `arguments` is Python's own command line: what counts is the program that runs, not its words.
    """
    words = iter(arguments[1:])
    for word in words:
        if word == "-m":
            return next(words, "") in _SUPERVISOR_MODULES
        if word in ("-W", "-X"):
            next(words, "")
        elif not word.startswith("-"):
            program = os.path.basename(word)  # noqa: PTH119 - pathlib is not worth its import here
            return program in _SUPERVISORS or "torch/_inductor/compile_worker" in word
    return False


def install() -> None:
    """Watch for torch, unless this process is a supervisor or is armed already."""
    watching = any(isinstance(finder, TorchWatcher) for finder in sys.meta_path)
    if SESSION_VARIABLE in os.environ and not watching and not is_supervisor(sys.orig_argv):
        sys.meta_path.insert(0, TorchWatcher())


install()
