"""Libraries that open files in C, by their paths, past Python: their paths are translated."""

import functools
import os
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from flatout.inside.imports import after_import
from flatout.inside.redirect.os_calls import Calls
from flatout.inside.redirect.place import Layer, as_text, database_path, is_real_folder, lstat_or_none
from flatout.inside.redirect.shadow import View
from flatout.inside.redirect.stand_in import Breach, StandIn, Theirs, call_real


class CFile(NamedTuple):
    """A function of a library that opens a file in C, by its path, past Python and its audit hooks."""

    module: str
    name: str
    position: int
    keyword: str
    # "r" reads, "w" begins a new file, "a" changes what is there, "d" writes into a folder; or the argument
    # that says which: its position and its name.
    mode: str | tuple[int, str]
    # Without it there would be no protection, so a version that lacks it counts as a breach.
    vital: bool = False


_C_FILES = (
    CFile("torch", "_C.PyTorchFileWriter.__init__", 0, "file_name", "w", vital=True),
    CFile("torch", "_C.PyTorchFileReader.__init__", 0, "name", "r"),
    CFile("torch", "_C.ScriptModule.save", 0, "filename", "w"),
    CFile("torch", "_C.ScriptModule._save_for_mobile", 0, "filename", "w"),
    CFile("torch", "_C.ScriptFunction.save", 0, "filename", "w"),
    CFile("torch", "_C.import_ir_module", 1, "filename", "r"),
    CFile("torch", "_C._load_for_lite_interpreter", 0, "filename", "r"),
    CFile("torch", "_C._autograd._ProfilerResult.save", 0, "path", "w"),
    CFile("torch", "_C._distributed_c10d.FileStore.__init__", 0, "file_name", "a"),
    CFile("torch", "from_file", 0, "filename", (1, "shared")),
    CFile("torch", "UntypedStorage.from_file", 0, "filename", (1, "shared")),
    CFile("torch.profiler.profiler", "_add_execution_trace_observer", 0, "path", "w"),
    CFile("safetensors._safetensors_rust", "serialize_file", 1, "filename", "w", vital=True),
    CFile("safetensors._safetensors_rust", "safe_open", 0, "filename", "r"),
    CFile("tokenizers", "Tokenizer.save", 0, "path", "w"),
    CFile("tokenizers", "Tokenizer.from_file", 0, "path", "r"),
    CFile("tokenizers.models", "Model.save", 0, "folder", "d"),
    CFile("h5py", "File.__init__", 0, "name", (1, "mode")),
    CFile("pyarrow.lib", "memory_map", 0, "path", (1, "mode")),
    CFile("pyarrow.lib", "OSFile", 0, "path", (1, "mode")),
    CFile("pyarrow.lib", "create_memory_map", 0, "path", "w"),
    CFile("pyarrow.parquet.core", "ParquetWriter.__init__", 0, "where", "w"),
    CFile("_ctypes", "dlopen", 0, "name", "r"),
    CFile("cv2", "imwrite", 0, "filename", "w"),
    CFile("cv2", "imread", 0, "filename", "r"),
)


class Libraries:
    """Translates the paths that libraries hand to C."""

    def __init__(self, view: View, calls: Calls, breach: Breach) -> None:
        self._view, self._calls, self._breach = view, calls, breach

    def watch(self) -> None:
        """Take each library's functions into hand once it is imported."""
        for module in dict.fromkeys(file.module for file in _C_FILES):
            after_import(module, self._guarded(self._replace))
        after_import("_sqlite3", self._guarded(self._replace_connect))
        after_import("subprocess", self._guarded(self._replace_popen))

    def _guarded(self, function: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        def callback(module: ModuleType) -> None:
            try:
                function(module)
            except Exception as error:  # noqa: BLE001 - a library left as it was would be a hole
                self._breach(f"{module.__name__} cannot be redirected: {type(error).__name__}: {error}")

        return callback

    def _replace(self, module: ModuleType) -> None:
        import inspect

        for file in _C_FILES:
            if file.module != module.__name__:
                continue
            *owners, name = file.name.split(".")
            owner: Any = module
            for inner in owners:
                owner = getattr(owner, inner, None)
            real = getattr(owner, name, None)
            if real is None:
                if file.vital:
                    raise AttributeError(file.name)
                continue
            if isinstance(owner, ModuleType):
                setattr(owner, name, StandIn(real, self._wrapped(file, real), self._breach))
            elif inspect.getattr_static(owner, name).__class__.__name__ in _BOUND_TO_NO_INSTANCE:
                setattr(owner, name, staticmethod(self._wrapped(file, real)))
            else:
                setattr(owner, name, self._wrapped(file._replace(position=file.position + 1), real, shift=1))

    def _wrapped(self, file: CFile, real: Callable[..., Any], shift: int = 0) -> Callable[..., Any]:
        @functools.wraps(real)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = args[file.position] if len(args) > file.position else kwargs.get(file.keyword)
            if as_text(given) is not None:
                there = self._translated(given, _mode(file.mode, args, kwargs, shift))
                if len(args) > file.position:
                    args = (*args[: file.position], there, *args[file.position + 1 :])
                else:
                    kwargs = {**kwargs, file.keyword: there}
            try:
                return real(*args, **kwargs)
            except Exception as error:
                raise Theirs(error) from error

        return self._plain(call, real)

    def _plain(self, call: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
        """A function, to be a method or a static method: with the same care as a stand-in."""
        guarded = StandIn(real, call, self._breach)

        @functools.wraps(real)
        def function(*args: Any, **kwargs: Any) -> Any:
            return guarded(*args, **kwargs)

        return function

    def _translated(self, given: Any, mode: str) -> Any:
        text = as_text(given) or ""
        if mode == "r":
            try:
                there = self._calls.where_to_read(given)
            except FileNotFoundError:  # the library is to say so; a bare name may be one of a system library
                there = self._view.files + self._view.absolute(text)[0] if "/" in text else None
            return given if there is None else there
        place = self._view.writing(text)
        if place.layer is Layer.FREE:
            return place.path if place.detour else given
        if mode == "d":
            return self._view.copy_up(place, given)
        flags = os.O_RDWR | os.O_CREAT | (os.O_TRUNC if mode == "w" else 0)
        try:
            return self._calls.where_to_write(place, given, flags)
        except FileNotFoundError:
            # The library is to say in its own words that there is no such folder.
            parent = place.path.rpartition("/")[0] or "/"
            return given if lstat_or_none(parent) is None else self._view.files + place.path

    def _replace_connect(self, module: ModuleType) -> None:
        real = vars(module)["connect"]

        def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
            return call_real(
                real, database, self._database(database, kwargs.get("uri", False)), *args, **kwargs
            )

        vars(module)["connect"] = StandIn(real, connect, self._breach)

    def _database(self, given: Any, uri: bool) -> Any:
        """sqlite writes beside its file as well, so a database that is there goes into the shadow whole."""
        text = as_text(given)
        path = database_path(text) if uri and text is not None and text.startswith("file:") else text
        if path in (None, "", ":memory:"):
            return given
        for beside in ("-wal", "-journal", "-shm"):
            other = self._view.writing(f"{path}{beside}")
            if other.layer is Layer.REAL:
                self._view.copy_up(other, given)
        there = self._translated(path, "a")
        if there == path:
            return given
        if path is text:
            return there
        from urllib.parse import quote

        return f"file:{quote(there)}?{str(text).partition('?')[2]}"

    def _replace_popen(self, module: ModuleType) -> None:
        """A program can only be started in a folder that the kernel knows."""
        real = module.Popen.__init__

        @functools.wraps(real)
        def start(popen: Any, *args: Any, **kwargs: Any) -> None:
            cwd = kwargs.get("cwd")
            text = as_text(cwd)
            place = None if text is None else self._view.reading(text)
            if place is not None and place.found is not None and not is_real_folder(place):
                kwargs["cwd"] = self._view.physical(place)
            real(popen, *args, **kwargs)

        module.Popen.__init__ = start


_BOUND_TO_NO_INSTANCE = (
    "staticmethod",
    "classmethod",
    "builtin_function_or_method",
    "classmethod_descriptor",
)


def _mode(mode: str | tuple[int, str], args: tuple[Any, ...], kwargs: Mapping[str, Any], shift: int) -> str:
    if isinstance(mode, str):
        return mode
    position, keyword = mode[0] + shift, mode[1]
    value = args[position] if len(args) > position else kwargs.get(keyword)
    if value in (None, False, "r", "rb"):
        return "r"
    return "w" if isinstance(value, str) and value[0] in "wx" else "a"
