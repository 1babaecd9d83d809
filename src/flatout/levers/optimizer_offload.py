"""An optimizer's states that wait for the update in the host's memory."""

from collections.abc import Callable
from typing import Any

from flatout.levers.blocks import repeated_blocks
from flatout.levers.job import JobFacts
from flatout.levers.lever import Call, Lever, Refused, Scene, Settings
from flatout.levers.offloading import Away, FromHost, ToHost, host_has_room, is_plain

# Counts of steps and the like stay where they are.
_FEWEST_BYTES = 1 << 12


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


class States:
    """The states of one optimizer, at home on the host."""

    def __init__(self, torch: Any, device: Any, optimizer: Any, *, fewest_bytes: int = _FEWEST_BYTES) -> None:
        self._torch = torch
        self._device = torch.device(device)
        self._optimizer = optimizer
        self._fewest = fewest_bytes
        self._out, self._back = ToHost(torch, self._device, window_bytes=None), FromHost(torch, self._device)
        # By parameter and name: where each waits, and used again for the next stay.
        self._homes: dict[tuple[Any, str], Away] = {}
        self._handles = [
            optimizer.register_step_pre_hook(lambda *_: self._come()),
            optimizer.register_step_post_hook(lambda *_: self._leave()),
        ]
        self._leave()

    @property
    def is_leaving(self) -> bool:
        """Whether some are on their way out and held until they are there."""
        return self._out.is_busy

    def let_go(self, share: float) -> None:
        """Of those on their way out, so many are gone once what is launched next begins."""
        self._out.let_go(share)

    def give_back(self) -> None:
        """Everything is as it was."""
        for handle in self._handles:
            handle.remove()
        self._come()
        self._out.let_go(1.0)
        self._homes.clear()

    def _come(self) -> None:
        events = []
        for parameter, name, value in self._states():
            home = self._homes.get((parameter, name))
            if home is not None and value is home.host:
                tensor, arrived = self._back.fetch(home)
                self._optimizer.state[parameter][name] = tensor
                events.append(arrived)
        for event in events:
            self._back.wait_for(event)

    def _leave(self) -> None:
        for parameter, name, value in self._states():
            if value.device != self._device or value.nbytes < self._fewest:
                continue
            home = self._homes.get((parameter, name))
            if home is None and not (is_plain(self._torch, value) and host_has_room(value.nbytes)):
                continue
            self._homes[parameter, name] = home = self._out.send(value, home)
            self._optimizer.state[parameter][name] = home.host

    def _states(self) -> list[tuple[Any, str, Any]]:
        return [
            (parameter, name, value)
            for parameter, state in self._optimizer.state.items()
            for name, value in state.items()
            if isinstance(value, self._torch.Tensor)
        ]
