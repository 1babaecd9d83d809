"""Where a training of Lightning stands, beyond what its checkpoints hold: its data, and random numbers.

Lightning asks a loader with `state_dict()` for its place, and warns of others that they begin a pass anew.
"""

from typing import Any

from flatout.integrations.packing import packed, unpacked
from flatout.runtime.checkpoint.position import Loader


def resumable(loader: Any) -> "ResumableLoader":
    """A DataLoader of which Lightning's checkpoints keep the place: training goes on with the next batch.

        trainer.fit(module, resumable(loader))

    Under several ranks give it a DistributedSampler: Lightning puts one into plain DataLoaders only.
    """
    return ResumableLoader(loader)


class ResumableLoader:
    """What Lightning sees of it; what is not here is the loader's own."""

    def __init__(self, loader: Any) -> None:
        import torch

        self._follower = Loader(torch, loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_follower"], name)

    def __len__(self) -> int:
        return len(self._follower)

    def __iter__(self) -> Any:
        return iter(self._follower)

    def state_dict(self) -> dict[str, Any]:
        """Where it stands: between two batches."""
        return packed(self._follower.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next pass begins there. Of one that was over, Lightning asks for nothing more."""
        kept = unpacked(state)
        if kept["is_over"]:
            kept |= {"batches": 0, "passes": kept["passes"] + 1, "is_over": False}
        self._follower.load_state_dict(kept)
