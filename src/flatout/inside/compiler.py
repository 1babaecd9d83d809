"""The compiler tap: what torch.compile compiled in each step, again and for how long, and where graphs broke.

A step in which something was compiled is no measure of the job's speed; one that compiles in the middle of
training is a finding.
"""

import importlib
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from flatout.inside.imports import after_import
from flatout.inside.tap import clock

if TYPE_CHECKING:
    from flatout.inside.session import Session

_DYNAMO_CALLBACKS = "torch._dynamo.callback"
_DYNAMO_UTILS = "torch._dynamo.utils"
# Not a compilation: a CUDA graph of code that was compiled before is recorded, anew where addresses changed.
_RECORDING = "CUDAGRAPH_RECORDING"


class CompilerTap:
    """Listens to dynamo once it is there; a job that never compiles pays one look-up a step."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._handler: Any = None
        self._started_ns = 0
        self._wanted = False

    def install(self) -> None:
        """Listen from the moment dynamo is loaded: its first compilation follows at once."""
        self._wanted = True
        after_import(_DYNAMO_CALLBACKS, lambda _module: self._session.guarded("compiler", self.look))

    def look(self) -> None:
        """Register with dynamo as soon as it has been loaded."""
        if self._handler is not None or not self._wanted or _DYNAMO_CALLBACKS not in sys.modules:
            return
        module: Any = importlib.import_module(_DYNAMO_CALLBACKS)
        handler = getattr(module, "callback_handler", None)
        if handler is None:
            return  # dynamo is being imported at this moment
        handler.register_start_callback(self._begun)
        handler.register_end_callback(self._ended)
        self._handler = handler

    def remove(self) -> None:
        """Listen no longer."""
        self._wanted = False
        if self._handler is not None:
            for callbacks in (self._handler.start_callbacks, self._handler.end_callbacks):
                for ours in (self._begun, self._ended):
                    if ours in callbacks:
                        callbacks.remove(ours)
            self._handler = None

    def graph_breaks(self) -> dict[str, int]:
        """Reasons for breaks so far, as dynamo words them (first line), with their counts."""
        module: Any = sys.modules.get(_DYNAMO_UTILS)
        if module is None:
            return {}
        found: Counter[str] = Counter()
        for reason, count in module.counters["graph_break"].items():
            found[str(reason).partition("\n")[0]] += count
        return dict(found)

    def _begun(self, *_: Any) -> None:
        self._started_ns = clock()

    def _ended(self, *args: Any) -> None:
        # "[3/1]": the frame's number, and how often it had been compiled before.
        number = str(getattr(args[0], "compile_id", "")) if args else ""
        again = number.strip("[]").rpartition("/")[2].split("_")[0]
        now = clock()
        if getattr(getattr(args[0] if args else None, "callback_trigger", None), "name", "") == _RECORDING:
            self._session.log.add(("recording", self._started_ns or now, now))
            self._started_ns = 0
            return
        self._session.log.add(("compile", self._started_ns or now, now, again.isdigit() and int(again) > 0))
        self._started_ns = 0
