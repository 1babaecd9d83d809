"""Marks around the calls of modules, for a profiler that records: which part of the model launched what.

Hooks on all modules at once make torch.compile compile anew, so a job that compiles anything goes without.
"""

from typing import TYPE_CHECKING, Any

from flatout.inside.tap import thread
from flatout.levers.compiled_graphs import graphs_compiled
from flatout.records.session import MODULE_MARK

if TYPE_CHECKING:
    from flatout.inside.session import Session


class ModuleMarks:
    """Two hooks, there while a window records."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._names: dict[int, str] = {}
        self._hooks: list[Any] = []
        self._open: list[Any] = []

    def begin(self, roots: Any) -> None:
        """Mark calls from here on."""
        if graphs_compiled():
            return
        hooks = self._session.torch.nn.modules.module
        for root in roots:
            self._name(root, type(root).__name__)
        self._hooks = [
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave, always_call=True),
        ]

    def _name(self, module: Any, name: str) -> None:
        """The module and all inside of it; layers of a kind that repeat have one name."""
        if id(module) in self._names:
            return
        self._names[id(module)] = name
        inside = dict(module.named_children())
        repeats = len(inside) > 1 and len(set(map(type, inside.values()))) == 1
        for own, child in inside.items():
            self._name(child, f"{name}.{'*' if repeats and own.isdigit() else own}")

    def end(self) -> None:
        """And no longer."""
        while self._hooks:
            self._hooks.pop().remove()
        while self._open:
            self._open.pop()[1].__exit__(None, None, None)

    def _enter(self, module: Any, _args: Any) -> None:
        if thread() != self._session.thread:
            return
        name = self._names.get(id(module)) or type(module).__name__
        mark = self._session.torch.profiler.record_function(f"{MODULE_MARK}{name}")
        mark.__enter__()
        self._open.append((id(module), mark))

    def _leave(self, module: Any, _args: Any, _out: Any) -> None:
        # A call that began before the hooks were there has no mark.
        if self._open and self._open[-1][0] == id(module) and thread() == self._session.thread:
            self._open.pop()[1].__exit__(None, None, None)
