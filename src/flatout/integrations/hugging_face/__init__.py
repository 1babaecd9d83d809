"""Flatout in the Trainer of transformers.

    from flatout.integrations.hugging_face import FlatoutCallback, newest_checkpoint, training_arguments

    args = TrainingArguments("out", **training_arguments("flatout.toml"))
    trainer = Trainer(model=model, args=args, ..., callbacks=[FlatoutCallback("flatout.toml")])
    trainer.train(resume_from_checkpoint=newest_checkpoint("out"))

transformers is imported when `FlatoutCallback` is first asked for; the rest needs nothing.
"""

from typing import TYPE_CHECKING, Any

from flatout.integrations.hugging_face.checkpoints import newest_checkpoint
from flatout.integrations.hugging_face.switches import training_arguments

if TYPE_CHECKING:
    from flatout.integrations.hugging_face.callback import FlatoutCallback

__all__ = ["FlatoutCallback", "newest_checkpoint", "training_arguments"]


def __getattr__(name: str) -> Any:
    if name != "FlatoutCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from flatout.integrations.hugging_face.callback import FlatoutCallback

    return FlatoutCallback
