"""Waits, in any Python process that inherits FLATOUT_SESSION, for torch to be imported, and arms the session.

Imported by the `.pth` file and by our `sitecustomize`, before the user's first line. It must never raise and
never print: whatever goes wrong here would look like the user's own script breaking.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from flatout.records.session import SESSION_VARIABLE

# Programs that import torch but train nothing; their children inherit the variable and are armed.
_SUPERVISORS = ("torchrun", "accelerate", "deepspeed")
_SUPERVISOR_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "torch._inductor.compile_worker",
)


def _arm(torch: ModuleType, order_path: str) -> None:
    try:
        from flatout.inside.session import start_session

        session = start_session(torch, order_path)
        if session.order.imagine:
            from flatout.memory.imagined.world import imagine

            imagine(torch, session.folder())
        if session.order.protect:
            from flatout.runtime.protect.guest import protect

            protect(torch, session.order, session.facts)
        if session.order.on_nan:
            from flatout.runtime.finite.guest import FiniteUpdates

            FiniteUpdates(session).install()
    except Exception as error:  # noqa: BLE001 - a session that cannot start must not stop the job
        _note_failure(error, order_path)


def _note_failure(error: Exception, order_path: str) -> None:
    """Leave a word beside the order, where there is one; the parent reads it."""
    try:
        if os.path.exists(order_path):  # noqa: PTH110
            with open(f"{order_path}.failed", "a") as file:  # noqa: PTH123
                file.write(f"{os.getpid()} {type(error).__name__}: {error}\n")
    except Exception:  # noqa: BLE001 - nobody is left to tell
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
    """Protect what a trial must not touch, and watch for torch unless this process is a supervisor."""
    if SESSION_VARIABLE not in os.environ or _installed:
        return
    _installed.append(True)
    order_path = os.environ[SESSION_VARIABLE]  # a script may delete it before it imports torch
    try:
        from flatout.entry.protection import protect
        from flatout.inside.imports import after_import
        from flatout.records.session import Order

        order = Order.read(Path(order_path))
        if order.trial:
            protect(order)
        if not is_supervisor(sys.orig_argv):
            after_import("torch", lambda torch: _arm(torch, order_path))
    except Exception as error:  # noqa: BLE001 - whatever goes wrong here would look like the script breaking
        _note_failure(error, order_path)


_installed: list[bool] = []
install()
