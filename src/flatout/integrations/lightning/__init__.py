"""Flatout in Lightning, be it the package `lightning` or `pytorch_lightning`.

    from flatout.integrations.lightning import FlatoutCallback, newest_checkpoint, resumable, trainer_settings

    trainer = Trainer(**trainer_settings("flatout.toml"), callbacks=[FlatoutCallback("flatout.toml")])
    trainer.fit(module, resumable(loader), ckpt_path=newest_checkpoint("kept"))

Lightning is imported when `FlatoutCallback` is first asked for.
"""

from typing import TYPE_CHECKING, Any

from flatout.integrations.lightning.checkpoints import newest_checkpoint
from flatout.integrations.lightning.place import resumable
from flatout.integrations.lightning.switches import loader_arguments, trainer_settings

if TYPE_CHECKING:
    from flatout.integrations.lightning.callback import FlatoutCallback

__all__ = ["FlatoutCallback", "loader_arguments", "newest_checkpoint", "resumable", "trainer_settings"]


def __getattr__(name: str) -> Any:
    if name != "FlatoutCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from flatout.integrations.lightning.callback import FlatoutCallback

    return FlatoutCallback
