"""An optimizer's states that wait for the update in the host's memory."""

from collections.abc import Callable
from typing import Any

from flatout.levers.blocks import repeated_blocks
from flatout.levers.job import JobFacts
from flatout.levers.lever import Call, Lever, Refused, Scene, Settings
from flatout.levers.optimizer_states import States


class OptimizerOffload(Lever):
    """The optimizer's states are on the device while it updates, and on the host otherwise.

    When an update begins, activations are gone: there is room for the states then. They come for it, and
    leave when it is done, while the next forward pass computes. Numbers stay the same, bit for bit. Works
    with any of torch's optimizers; what they save is loaded with and without Flatout. Each update waits for
    the states to come: it pays where a step is long, with large batches or several micro-batches. Only tried
    where the goal is less memory, or where a plan must fit into some.
    """

    id = "optimizer-offload"
    title = "optimizer offload"
    safety = "memory"
    layer = 16
    conflicts = ("optimizer-8bit",)

    @classmethod
    def check(cls, job: JobFacts) -> str:
        """Needs states, and a host that is not the device."""
        if not job.on_gpu:
            return "the job does not train on a GPU"
        return "" if job.habit("optimizers", ()) else "no optimizer was seen"

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """The states come over the host's link, which carries a hundredth of what the device reads."""
        return 1.0 / (1.0 + 20 * (job.device_shares or job.host_shares).get("optimizer", 0.02))

    def __init__(self, scene: Scene, settings: Settings) -> None:
        super().__init__(scene, settings)
        self._taken: list[States] = []

    def apply(self) -> None:
        """Around every update."""
        for optimizer in self.scene.optimizers():
            self.on_optimizer(optimizer)
        if self.scene.optimizers() and not self._taken:
            raise Refused("the optimizer updates by means of its own")

    def on_optimizer(self, optimizer: Any) -> None:
        """One more."""
        if isinstance(optimizer, self.scene.torch.optim.Optimizer):
            self._taken.append(States(self.scene.torch, self.scene.device, optimizer))

    def undo(self) -> None:
        """States back on the device, for good."""
        for one in self._taken:
            one.give_back()
        self._taken = []

    def around(self, root: Any, call: Call) -> Call:
        """Room that states have left is free from the block on that comes after."""
        torch = self.scene.torch
        blocks = repeated_blocks(torch, [root])

        def with_room(*args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return call(*args, **kwargs)
            waiting = [one for one in self._taken if one.is_leaving]
            handles = [
                block.register_forward_pre_hook(_let_go(waiting, 1 / (len(blocks) - number)))
                for number, block in enumerate(blocks)
                if waiting
            ]
            if not handles:
                for one in waiting:
                    one.let_go(1.0)
            try:
                return call(*args, **kwargs)
            finally:
                for handle in handles:
                    handle.remove()
                for one in waiting:
                    one.let_go(1.0)

        return with_room


def _let_go(waiting: list["States"], share: float) -> Callable[..., None]:
    def before_a_block(*_: Any) -> None:
        for one in waiting:
            one.let_go(share)

    return before_a_block
