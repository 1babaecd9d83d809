"""Copy-on-write files inside one Python process, for kernels that offer no overlay file system.

What a trial writes outside the allowed folders goes to a shadow folder, and is found there again by whoever
reads, stats or lists; what it deletes is remembered as gone. All state is in the shadow folder, so that the
processes of a trial (ranks, spawned workers) see the same files:

    <shadow>/
      files/<path>     what was written, under the path that it was written to
      gone/<path>      a folder with the sticky bit: the real file or folder of that path is gone
      work/            copies under way
      generation       grows by a byte whenever a folder changes: readers know whether to look at all

Two nets hang below each other: functions are replaced, and an audit hook sees what slips past them. Neither
sees what C code or another program writes on its own; libraries known to do so are listed in `_C_FILES`.
"""

import _io
import importlib
import os
import posix
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from flatout.inside.redirect.c_files import Libraries
from flatout.inside.redirect.opening import Files
from flatout.inside.redirect.os_calls import Calls
from flatout.inside.redirect.shadow import View
from flatout.inside.redirect.stand_in import Breach, StandIn
from flatout.inside.redirect.tripwire import Tripwire


def _rebind(replaced: Mapping[int, Any]) -> None:
    """Put our functions wherever a module, or a class in it, holds the real one: `os` and `io`, and whoever
    took them from there before we came."""
    for name, module in list(sys.modules.items()):
        if name in ("posix", "_io") or name.startswith("flatout."):
            continue
        known = getattr(module, "__dict__", {})
        for owner in [module, *(value for value in known.values() if isinstance(value, type))]:
            for key, value in list(vars(owner).items()):
                real = value.__func__ if isinstance(value, staticmethod) else value
                if id(real) in replaced and getattr(owner, "__module__", name) == name:
                    ours = replaced[id(real)]
                    setattr(owner, key, staticmethod(ours) if isinstance(value, staticmethod) else ours)


def _for_importers(replaced: Mapping[str, Any], files: "Files") -> None:
    """Modules that the script wrote can be imported, and compiled ones are not left beside the sources."""
    sys.dont_write_bytecode = True
    external: Any = importlib.import_module("importlib._bootstrap_external")
    for name, ours in (
        ("_os", replaced),
        ("_io", {"open_code": files.open_code, "FileIO": files.file_io}),
        ("_imp", {"create_dynamic": files.create_dynamic}),
    ):
        source = vars(external)[name]
        borrowed = ModuleType(source.__name__)
        vars(borrowed).update({**vars(source), **ours})
        vars(external)[name] = borrowed


def install_redirect(
    shadow: Path,
    allowed: Sequence[Path],
    on_breach: Callable[[str], None],
    on_program: Callable[[str], None],
) -> None:
    """Send every write outside `allowed` to `shadow`, in this process and for good.

    `on_breach(what)` is told of a write that slipped past, before it happens, and of any failure in here: it
    is to record it and end the process. Should it return, the write is refused with a PermissionError.
    `on_program(name)` is told once of each program that is started and cannot be seen into.
    The folders in `allowed` must exist.
    """
    if isinstance(os.stat, StandIn):
        return  # once is for good
    breach = Breach(on_breach)
    view = View(shadow, allowed)
    tripwire = Tripwire(view, breach, on_program)
    calls = Calls(view, tripwire.expected)
    stand_ins = {name: StandIn(getattr(posix, name), call, breach) for name, call in calls.all.items()}
    files = Files(calls, tripwire.expected, stand_ins["open"])
    opener = StandIn(_io.open, files.open, breach)
    open_code = StandIn(_io.open_code, files.open_code, breach)
    replaced: dict[int, Any] = {id(getattr(posix, name)): ours for name, ours in stand_ins.items()}
    replaced |= {id(_io.open): opener, id(_io.open_code): open_code, id(_io.FileIO): files.file_io}
    for capable in (
        os.supports_dir_fd,
        os.supports_fd,
        os.supports_follow_symlinks,
        os.supports_effective_ids,
    ):
        capable.update(ours for name, ours in stand_ins.items() if getattr(posix, name) in capable)
    sys.addaudithook(tripwire)
    _rebind(replaced)
    _for_importers(stand_ins, files)
    Libraries(view, calls, breach).watch()
