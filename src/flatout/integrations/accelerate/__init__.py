"""Flatout around an Accelerator, in a loop of your own.

    from flatout.integrations.accelerate import Flatout, accelerator_settings

    accelerator = Accelerator(**accelerator_settings("flatout.toml"))
    with Flatout(accelerator, "flatout.toml", checkpoints="kept") as flat:
        model, optimizer, loader = flat.prepare(model, optimizer, loader)
        flat.resume()
        for epoch in flat.epochs(3):
            for batch in flat.batches(loader):
                with accelerator.accumulate(model):
                    ...
                flat.step()

Accelerate is imported when `Flatout` is first used.
"""

from flatout.integrations.accelerate.checkpoints import newest_checkpoint
from flatout.integrations.accelerate.loop import Flatout
from flatout.integrations.accelerate.switches import accelerator_settings

__all__ = ["Flatout", "accelerator_settings", "newest_checkpoint"]
