"""Calls back once a module has been imported, and leaves the import system as it was found."""

import importlib.abc
import importlib.machinery
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Callback = Callable[[ModuleType], None]


class ImportWatcher(importlib.abc.MetaPathFinder):
    """Stands first in the import system while a module is awaited, and steps aside with the last of them."""

    def __init__(self) -> None:
        self._awaited: dict[str, list[Callback]] = {}
        self._finding = threading.local()

    def wait_for(self, name: str, callback: Callback) -> None:
        """Call `callback` with the module called `name`, once it has been loaded."""
        self._awaited.setdefault(name, []).append(callback)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find an awaited module as everyone else would, and have its loader tell us when it is done.

        Being found is not being loaded: many look for a module (`importlib.util.find_spec`) only to know
        whether it is installed. So the wait ends with the loading, not here.
        """
        if fullname not in self._awaited:
            return None
        busy: set[str] = self._finding.__dict__.setdefault("names", set())
        if fullname in busy:  # another finder asks the whole import system in its turn
            return None
        busy.add(fullname)
        try:
            spec = _find_elsewhere(self, fullname, path, target)
        finally:
            busy.discard(fullname)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            _call_after_load(spec, self._loaded)
        return spec

    def _loaded(self, module: ModuleType) -> None:
        callbacks = self._awaited.pop(module.__name__, ())
        if not self._awaited and self in sys.meta_path:
            sys.meta_path.remove(self)
        for callback in callbacks:
            callback(module)


class _ProxyLoader(importlib.abc.Loader):
    """For loaders that take no attribute of ours, such as those of built-in modules, which are classes."""

    def __init__(self, spec: importlib.machinery.ModuleSpec, loaded: Callback) -> None:
        self._spec = spec
        self._loader: Any = spec.loader
        self._tell = loaded

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._spec.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._tell(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _find_elsewhere(
    watcher: ImportWatcher, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> importlib.machinery.ModuleSpec | None:
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        if finder is watcher or find is None:
            continue
        spec: importlib.machinery.ModuleSpec | None = find(name, path, target)
        if spec is not None:
            return spec
    return None


def _call_after_load(spec: importlib.machinery.ModuleSpec, loaded: Callback) -> None:
    loader: Any = spec.loader
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        vars(loader).pop("exec_module", None)  # the class's own again: nobody finds our fingers on the loader
        load(module)
        loaded(module)

    if isinstance(loader, type):
        spec.loader = _ProxyLoader(spec, loaded)
        return
    try:
        loader.exec_module = exec_module
    except AttributeError:
        spec.loader = _ProxyLoader(spec, loaded)


_watcher = ImportWatcher()


def after_import(name: str, callback: Callback) -> None:
    """Call `callback(module)` once `name` is imported; at once where it has been already.

    Callbacks run in the order in which they were given, before the line that imported the module goes on.
    What a callback raises comes out of the user's `import`: a callback that may fail catches its own.
    """
    module = sys.modules.get(name)
    if module is not None:
        callback(module)
    else:
        _watcher.wait_for(name, callback)
