"""Reads a checkpoint: plain data and tensors, from all ranks that wrote some; nothing in it is executed."""

import copy
import functools
import json
import mmap
from pathlib import Path
from typing import Any

from flatout.records.errors import CallerMistake, CorruptFile
from flatout.runtime.checkpoint.layout import BadFile, read_header
from flatout.runtime.checkpoint.plain import NotTrusted, Ref, Together
from flatout.runtime.checkpoint.ranks import named_of
from flatout.runtime.checkpoint.sharding import Part, Sharded, is_sharded
from flatout.runtime.checkpoint.store import PARTS_FILE, STATE_FILE, Damaged, Stored, read_manifest, verify

_OLDER = "resume from an older one"
_NONSENSE = (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, BadFile, RecursionError)


def read_state(torch: Any, stored: Stored, *, rank: int = 0, trust: bool = False) -> dict[str, Any]:
    """All of a checkpoint that concerns this rank, on the host; tensors in parts as `Sharded`.

    It was verified. Raises CorruptFile for nonsense, CallerMistake for pickles that nobody trusts.
    """
    try:
        return _Reader(torch, stored).state(rank, trust=trust)
    except NotTrusted as problem:
        raise CallerMistake(
            f"{stored.path}: {problem}",
            expected="a checkpoint of plain data and tensors",
            remedy="pass trust=True if you wrote it",
        ) from problem
    except _NONSENSE as problem:
        raise CorruptFile(stored.path, str(problem), remedy=_OLDER) from problem


class _Reader:
    def __init__(self, torch: Any, stored: Stored) -> None:
        self._torch = torch
        self._path = stored.path
        manifest = read_manifest(stored.path)
        self._listed = manifest["files"]
        self._ranks = int(manifest.get("ranks", 1))
        self._open = functools.cache(self._opened)

    def state(self, rank: int, *, trust: bool) -> dict[str, Any]:
        together = Together(self._torch, functools.partial(self._tensor, 0), self._sharded, trust=trust)
        state = together.state(self._json(STATE_FILE))
        if rank:
            state.pop("random", None)
            own = named_of(rank, STATE_FILE)
            if own in self._listed:  # else there were fewer ranks: the pass over the data is everybody's
                state.pop("loader", None)
                of_rank = functools.partial(self._tensor, rank)
                together = Together(self._torch, of_rank, self._sharded, trust=trust)
                state |= together.state(self._json(own))
        return state

    def _json(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self._path / name).read_bytes())
        return found

    def _tensor(self, rank: int, ref: Ref) -> Any:
        file, name = ref
        header, whole = self._open(named_of(rank, f"{file}.safetensors"))
        place = header[name]
        part = whole[place.start : place.end]
        return part.view(getattr(self._torch, place.dtype)).view(place.shape).clone()

    def _opened(self, name: str) -> tuple[dict[str, Any], Any]:
        if name not in self._listed:
            raise ValueError(f"its manifest knows of no {name!r}")
        with (self._path / name).open("rb") as file:
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return read_header(memoryview(memory)), self._torch.frombuffer(memory, dtype=self._torch.uint8)

    @functools.cached_property
    def _parts(self) -> dict[Ref, list[tuple[int, Part]]]:
        """Which ranks hold which parts."""
        found: dict[Ref, list[tuple[int, Part]]] = {}
        for rank in range(self._ranks):
            name = named_of(rank, PARTS_FILE)
            for file, of_file in self._json(name).items() if name in self._listed else ():
                for tensor, plain in of_file.items():
                    found.setdefault((file, tensor), []).append((rank, Part.of(plain)))
        return found

    def _sharded(self, ref: Ref) -> Sharded:
        return Sharded(
            tuple((part, functools.partial(self._tensor, rank, ref)) for rank, part in self._parts[ref])
        )


def spread(torch: Any, part: Any, state: Any) -> Any:
    """The state with every tensor that was in parts as `part` wants it: in parts like its own, or whole."""
    like = _Likeness(part)

    def put(value: Any, path: tuple[Any, ...]) -> Any:
        if isinstance(value, Sharded):
            model = like.at(path)
            return value.like(torch, model) if model is not None else value.read(torch)
        if isinstance(value, dict):
            again = copy.copy(value)  # of its own kind
            for key, one in value.items():
                again[key] = put(one, (*path, key))
            return again
        if isinstance(value, list):
            return [put(one, (*path, at)) for at, one in enumerate(value)]
        return value

    return put(state, ())


class _Likeness:
    """How an object's own tensors are spread, by their place in its state."""

    def __init__(self, part: Any) -> None:
        self._state = part.state_dict()
        groups = getattr(part, "param_groups", None) or ()
        # An optimizer that has made no step has no state yet: its tensors will be as its parameters are.
        self._parameters = [parameter for group in groups for parameter in group["params"]]

    def at(self, path: tuple[Any, ...]) -> Any:
        found = self._state
        for key in path:
            try:
                found = found[key]
            except (KeyError, IndexError, TypeError):
                found = None
                break
        if found is not None:
            return found if is_sharded(found) else None
        if len(path) > 1 and path[0] == "state" and isinstance(path[1], int) and self._parameters:
            parameter = self._parameters[path[1]]
            return parameter if is_sharded(parameter) else None
        return None


def named(folder: Path, which: str | Path) -> Stored:
    """The checkpoint that somebody asks for by its name or path, if it is whole."""
    path = Path(which) if Path(which).is_dir() else folder / which
    if not path.is_dir():
        raise CallerMistake(
            f"no checkpoint {str(which)!r}", expected=f"a folder in {folder}", remedy='resume("latest")'
        )
    try:
        manifest = verify(path)
    except Damaged as problem:
        raise CorruptFile(path, str(problem), remedy=_OLDER) from problem
    return Stored(manifest["step"], path)


def is_in_a_pass(stored: Stored) -> bool:
    """Whether it was saved with some of a pass over the data still to come."""
    loader = json.loads(Path(stored.path / STATE_FILE).read_bytes()).get("loader")
    return bool(loader and loader.get("batches") and not loader.get("is_over"))
