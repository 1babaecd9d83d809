"""The ranks of a training, as far as checkpoints are concerned: who is first, and what all must agree on."""

import itertools
from collections.abc import Callable
from typing import Any

from flatout.runtime.meeting import words_of_this_life

_made = itertools.count()


def named_of(rank: int, file: str) -> str:
    """What a file of some rank is called; those of the first bear their plain names."""
    return f"rank-{rank}.{file}" if rank else file


class Ranks:
    """This process among those that train together; alone, it is the first of one."""

    def __init__(self, torch: Any) -> None:
        # Every rank makes its checkpointers in the same order.
        self._name = f"checkpoint/{next(_made)}"
        self._agreed = 0
        self._store = words_of_this_life()
        self.rank = torch.distributed.get_rank() if self._store is not None else 0
        self.count = torch.distributed.get_world_size() if self._store is not None else 1

    @property
    def is_first(self) -> bool:
        """Whether it is the one that commits."""
        return bool(self.rank == 0)

    def name(self, file: str) -> str:
        """What a file of this rank is called."""
        return named_of(self.rank, file)

    def agree(self, make: Callable[[], str]) -> str:
        """What the first rank says, on all of them; an error of its own is everybody's."""
        if self._store is None:
            return make()
        self._agreed += 1
        key = f"{self._name}/{self._agreed}"
        if not self.is_first:
            said = self._store.get(key).decode()
            if said.startswith("!"):
                raise RuntimeError(f"rank 0: {said[1:]}")
            return str(said[1:])
        try:
            made = make()
        except BaseException as error:
            self._store.set(key, f"!{type(error).__name__}: {error}")
            raise
        self._store.set(key, f"={made}")
        return made
