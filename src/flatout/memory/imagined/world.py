"""Puts an imagined GPU around a script: a guest of the session, from the import of torch to the end."""

import contextlib
from pathlib import Path
from typing import Any

from flatout.memory.imagined.devices import believe, believer
from flatout.memory.imagined.ledger import Ledger
from flatout.memory.imagined.stand_ins import stand_in
from flatout.memory.imagined.tracking import tracker


def imagine(torch: Any, folder: Path) -> Ledger:
    """Begin; there is no way back in this process."""
    import torch._subclasses.fake_tensor as fake
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    ledger = Ledger(torch, folder)
    wanted, moving, inside = [0], [0], [0]
    stand_in(torch, moving, ledger)
    believe(torch, fake.FakeTensor, ledger, inside)
    believes = believer(torch, ledger, wanted, moving)
    for mode in (
        fake.FakeTensorMode(allow_non_fake_inputs=True),
        tracker(torch, ledger, wanted, inside),
        believes,
    ):
        mode.__enter__()
    _believe_on_the_way_back(torch, believes, ledger)
    register_optimizer_step_pre_hook(lambda _optimizer, _args, _kwargs: ledger.begin_update())
    register_optimizer_step_post_hook(lambda optimizer, _args, _kwargs: ledger.update(optimizer))
    return ledger


def _believe_on_the_way_back(torch: Any, believes: Any, ledger: Ledger) -> None:
    """`backward` is a function of torch, within which a mode is off: but what checkpoints compute once more
    must be seen too."""
    run_backward = torch.autograd._engine_run_backward  # noqa: SLF001
    modes = torch.overrides._get_current_function_mode_stack  # noqa: SLF001

    def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
        with contextlib.nullcontext() if believes in modes() else believes:
            found = run_backward(*args, **kwargs)
        ledger.end_backward()
        return found

    torch.autograd._engine_run_backward = _engine_run_backward  # noqa: SLF001
