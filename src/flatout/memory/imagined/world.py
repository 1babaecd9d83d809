"""Puts an imagined GPU around a script: a guest of the session, from the import of torch to the end."""

from pathlib import Path
from typing import Any

from flatout.memory.imagined.devices import believer
from flatout.memory.imagined.ledger import Ledger
from flatout.memory.imagined.stand_ins import stand_in
from flatout.memory.imagined.tracking import tracker


def imagine(torch: Any, folder: Path) -> Ledger:
    """Begin; there is no way back in this process."""
    import torch._subclasses.fake_tensor as fake
    from torch.optim.optimizer import register_optimizer_step_post_hook

    ledger = Ledger(torch, folder)
    wanted, moving = [0], [0]
    stand_in(torch, moving)
    for mode in (
        fake.FakeTensorMode(allow_non_fake_inputs=True),
        tracker(torch, ledger, wanted),
        believer(torch, ledger, wanted, moving),
    ):
        mode.__enter__()
    register_optimizer_step_post_hook(lambda optimizer, _args, _kwargs: ledger.update(optimizer))
    return ledger
