"""What a script has read from tensors, update by update: what its own variables are made of.

One line of JSON for the reads between two updates: each with the place in the source that asked. A killed
process leaves all lines but the one it was about to write, and nothing after the last checkpoint is needed.
"""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

# What was read, where: `["train.py:31", 0.25]`.
Read = list[Any]


class Lines:
    """A journal on disk: numbers of updates, what was read after each, and checksums of what was learned."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.reads: dict[int, list[Read]] = {}
        self.proofs: dict[int, str] = {}
        with contextlib.suppress(FileNotFoundError), path.open() as file:
            for line in file:
                try:
                    number, reads, proof = json.loads(line)
                except ValueError:  # cut off when the process was killed
                    break
                self.reads[number] = reads
                if proof:
                    self.proofs[number] = proof

    def cut(self, after: int) -> "Lines":
        """Forget what came after this update; what is forgotten."""
        gone = object.__new__(Lines)
        gone.reads = {number: self.reads.pop(number) for number in [*self.reads] if number > after}
        gone.proofs = {number: self.proofs.pop(number) for number in [*self.proofs] if number > after}
        text = "".join(
            json.dumps([number, reads, self.proofs.get(number, "")]) + "\n"
            for number, reads in sorted(self.reads.items())
        )
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(".partial")
        partial.write_text(text)
        partial.replace(self._path)
        return gone


class Journal:
    """Notes reads as they are made, and puts a line on the disk at each update."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", buffering=1)
        self._reads: list[Read] = []

    def note(self, place: str, value: Any) -> None:
        """Something was read."""
        self._reads.append([place, value])

    def updated(self, number: int, proof: str = "") -> list[Read]:
        """An update ended: what was read since the one before, which belongs to `number`."""
        reads, self._reads = self._reads, []
        if reads or proof:
            self._file.write(json.dumps([number, reads, proof]) + "\n")
        return reads

    def close(self) -> None:
        """No more."""
        self._file.close()


class Replay:
    """Gives the reads of an earlier life, in their order."""

    def __init__(self, reads: dict[int, list[Read]]) -> None:
        self._reads = reads
        self._at = 0
        self._left: list[Read] = list(reads.get(1, ()))
        self._last: dict[str, Any] = {}
        # Reads that were not made then, and the first place of one.
        self.strange = 0
        self.strange_place = ""

    def updated(self, number: int) -> None:
        """This update is over: what comes was read before the next."""
        self._at = number
        self._left = list(self._reads.get(number + 1, ()))

    def is_strange(self, place: str) -> None:
        """Nobody can say what was read here then."""
        self.strange += 1
        self.strange_place = self.strange_place or place

    def read(self, place: str, really: Callable[[], Any]) -> Any:
        """What was read here then; what is there now, if nobody had read it."""
        for at, (then, value) in enumerate(self._left):
            if then == place:
                del self._left[: at + 1]
                self._last[place] = value
                return value
        self.is_strange(place)
        return self._last[place] if place in self._last else really()
