"""Who started this command and listens to its progress: a program that gave it a pipe (`flatout mcp`).

The pipe's number comes in a variable, which is taken out of the environment at once: no script that this
command starts may take another file of its own for that pipe.
"""

import contextlib
import os
import select
import signal
import stat
import threading

VARIABLE = "FLATOUT_PROGRESS_PIPE"
_pipes: list[int] = []


def take_pipe() -> None:
    """Find the pipe, and end this command with SIGTERM when nobody reads from it any more."""
    given = os.environ.pop(VARIABLE, "")
    if not given.isdecimal():
        return
    with contextlib.suppress(OSError):
        pipe = int(given)
        if not stat.S_ISFIFO(os.fstat(pipe).st_mode):
            return
        os.set_inheritable(pipe, False)
        os.set_blocking(pipe, False)
        _pipes.append(pipe)
        threading.Thread(target=_end_when_alone, args=(pipe,), daemon=True).start()


def is_there() -> bool:
    """Whether somebody listens."""
    return bool(_pipes)


def tell(name: str, done: int, total: int) -> None:
    """One line: where this command is. One that nobody takes is lost."""
    import json

    line = json.dumps({"name": name[:200], "done": done, "total": total}) + "\n"
    for pipe in _pipes:
        with contextlib.suppress(OSError):  # full, or closed
            os.write(pipe, line.encode())


def _end_when_alone(pipe: int) -> None:
    """A writer's end shows an error, and nothing else, once the reader is gone: killed, too."""
    watched = select.poll()
    watched.register(pipe, 0)
    watched.poll()
    os.kill(os.getpid(), signal.SIGTERM)
