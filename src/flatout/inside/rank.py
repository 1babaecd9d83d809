"""A process's place among the ranks of its job."""

import os
from typing import Any

ALONE = (0, 1)


class RankPlace:
    """Its rank and the size of its world; a group that has been destroyed since is remembered."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._place = ALONE

    def look(self) -> tuple[int, int]:
        """As torch.distributed has it, or as a launcher set it."""
        distributed = getattr(self._torch, "distributed", None)
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            self._place = (int(distributed.get_rank()), int(distributed.get_world_size()))
        elif self._place[1] == 1:
            rank, size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
            if rank.isdigit() and size.isdigit():
                self._place = (int(rank), int(size))
        return self._place

    def forget(self) -> None:
        """A forked child may be a rank of its own."""
        self._place = ALONE
