"""What an imagined device was asked for, and what was given back: one line of numbers for each."""

import json
import os
import re
import weakref
from pathlib import Path
from typing import Any

from flatout.inside.calls import Call, Files, calls_now, way_of
from flatout.records.session import LEDGER_FILE

# By their precedence.
_ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_EXPANDABLE = re.compile(r"expandable_segments\s*:\s*True")
_NOWHERE: Call = ("", 0, "")


class Ledger:
    """Every memory on the device, by number; who asked for it, and until when it was held."""

    def __init__(self, torch: Any, folder: Path) -> None:
        self._torch = torch
        self._path = folder / LEDGER_FILE
        # [number, bytes, place] where memory is taken, [number] where it is given back, [-updates] between;
        # [0] where an optimizer sets about the next one.
        self._events: list[list[int]] = []
        self._files = Files(torch)
        # The script's own line, the calls on the way there and on, and the operator that ran.
        self._places: dict[tuple[Call, tuple[Call, ...], str], int] = {}
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._on_host: weakref.WeakSet[Any] = weakref.WeakSet()
        # By number, what notes that it was given back.
        self._ends: dict[int, weakref.finalize[..., Any]] = {}
        self._count = 0
        self._updates = 0
        self._is_updating = False
        # By category, the numbers that belong to it.
        self._owners: dict[str, list[int]] = {}
        # What depends on values, which an imagined device does not have: by kind, where and how often.
        self.guessed: dict[str, dict[str, int]] = {}
        # In which types its products were computed.
        self.products: set[str] = set()
        # How the allocator was set from within; None where its environment says it all.
        self._allocator_settings: str | None = None
        # How many samples the script moved to the device last.
        self.batch: int | None = None

    def has(self, storage: Any) -> bool:
        """Whether this memory is the device's."""
        return storage in self._numbers

    def set_allocator(self, settings: str) -> None:
        """As the environment could have done it."""
        self._allocator_settings = settings

    def host(self, storage: Any) -> None:
        """Memory of the host."""
        if storage not in self._numbers:
            self._on_host.add(storage)

    def take(self, storage: Any, operator: str = "", *, moved: bool = False) -> None:
        """Memory on the device, unless it is known already; `moved` there from the host as it is."""
        if storage in self._numbers or (storage in self._on_host and not moved):
            return
        self._on_host.discard(storage)
        self._count += 1
        number = self._numbers[storage] = self._count
        if moved:  # with its module: frozen or not, no optimizer may know of it
            self._owners.setdefault("parameters", []).append(number)
        if storage.nbytes():
            self._events.append([number, storage.nbytes(), self._place(operator)])
            self._until_the_end_of(storage, number)

    def inherit(self, storage: Any, other: Any) -> None:
        """The memory of `other` is now this one's: on the device they would be one."""
        number = self._numbers.get(other)
        ends = self._ends.pop(number, None) if number is not None else None
        if number is None or ends is None or storage in self._numbers:
            self.take(storage)
            return
        ends.detach()
        self._numbers[storage] = number
        self._until_the_end_of(storage, number)

    def _until_the_end_of(self, storage: Any, number: int) -> None:
        # It must not keep the ledger alive, nor the storage.
        ends = self._ends[number] = weakref.finalize(storage, self._events.append, [number])
        ends.atexit = False

    def workspace(self, size: int, operator: str) -> None:
        """Memory that a library asks for once, and keeps."""
        self._count += 1
        self._events.append([self._count, size, self._place(operator)])
        self._owners.setdefault("workspace", []).append(self._count)

    def scratch(self, size: int, operator: str) -> None:
        """Memory that a kernel takes, and gives back when it is done."""
        self._count += 1
        self._events.append([self._count, size, self._place(operator)])
        self._events.append([self._count])

    def guess(self, what: str) -> None:
        """Note that the script asked for a value."""
        where = self._where()
        found = self.guessed.setdefault(what, {})
        found[where] = found.get(where, 0) + 1

    def begin_update(self) -> None:
        """From here on, what is taken is the optimizer's."""
        self._is_updating = True
        self._events.append([0])

    def end_backward(self) -> None:
        """An optimizer may have the whole step computed by a closure: its own work begins after that."""
        if self._is_updating:
            self.begin_update()

    def update(self, optimizer: Any) -> None:
        """An optimizer has made an update: who holds what now?"""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._own("parameters", parameter)
                self._own("gradients", parameter.grad)
                for value in optimizer.state.get(parameter, {}).values():
                    self._own("optimizer", value)
        self._is_updating = False
        self._updates += 1
        self._events.append([-self._updates])
        self.write()

    def write(self) -> None:
        """To the file, whole."""
        frames: dict[Call, int] = {}
        document = {
            "events": self._events,
            "places": [[*line, operator] for line, _, operator in self._places],
            "stacks": [
                [frames.setdefault(call, len(frames)) for call in calls] for _, calls, _ in self._places
            ],
            "frames": list(frames),
            "owners": {name: sorted(set(numbers)) for name, numbers in self._owners.items()},
            "updates": self._updates,
            "guessed": self.guessed,
            "products": sorted(self.products),
            "batch": self.batch,
            "expandable": bool(_EXPANDABLE.search(self._settings_now())),
        }
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(document))
        part.rename(self._path)

    def _settings_now(self) -> str:
        if self._allocator_settings is not None:
            return self._allocator_settings
        return next((os.environ[name] for name in _ALLOCATOR_SETTINGS if name in os.environ), "")

    def _own(self, category: str, value: Any) -> None:
        if isinstance(value, self._torch.Tensor):
            number = self._numbers.get(value.untyped_storage())
            if number is not None:
                self._owners.setdefault(category, []).append(number)

    def _place(self, operator: str) -> int:
        line, calls = way_of(calls_now(self._files))
        return self._places.setdefault((line or _NOWHERE, calls, operator), len(self._places))

    def _where(self) -> str:
        line, _ = way_of(calls_now(self._files))
        return f"{line[0]}:{line[1]}" if line is not None else ""
