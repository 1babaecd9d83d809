"""Adam's averages in 8 bits."""

import importlib.util
from typing import Any

from flatout.levers.eight_bit_adam import EightBitAdam
from flatout.levers.fused_optimizer import supports_fused
from flatout.levers.job import JobFacts, amdahl
from flatout.levers.lever import Lever, Refused, Scene, Settings
from flatout.levers.torchao import MISSING

_NAMES = ("Adam", "AdamW")


class Optimizer8bit(Lever):
    """Adam and AdamW with both averages in 8 bits (torchao). Only with `--allow optimizer-8bit`.

    Blocks of 256 values share a scale; parameters below 4,096 values stay with torch's own update. The
    optimizer's state takes a quarter of its memory, and an update moves 16 bytes a parameter instead of 28.
    It changes the training: averages are rounded to about two digits each step. The optimizer stays the
    script's own object, so schedulers, closures and clipping work as always, and what it saves is float32
    that loads without Flatout. Taken off, the averages go on in float32. Each shape is compiled once.
    """

    id = "optimizer-8bit"
    title = "8-bit optimizer"
    safety = "recipe"
    roundoff = 2.0**-6
    conflicts = ("fused-optimizer",)

    @classmethod
    def check(cls, job: JobFacts) -> str:
        """Needs torchao, and an Adam whose implementation the script left open."""
        if "torchao" not in job.habit("packages", {}):
            return MISSING
        optimizers = job.habit("optimizers", ())
        if not optimizers:
            return "no optimizer was seen"
        if not any(one["name"] in _NAMES for one in optimizers):
            return f"{optimizers[0]['name']} is neither Adam nor AdamW"
        if not any(_is_open(one) for one in optimizers):
            return "the script chose an implementation itself"
        if not job.on_gpu and not job.habit("cpp_compiler"):
            return "there is no C++ compiler, which torchao's update needs for CPU code"
        return ""

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """The optimizer's share, with 16 bytes moved a parameter instead of 28."""
        return amdahl((job.device_shares or job.host_shares).get("optimizer", 0.0), 28 / 16)

    def __init__(self, scene: Scene, settings: Settings) -> None:
        super().__init__(scene, settings)
        self._taken: list[EightBitAdam] = []

    def apply(self) -> None:
        """Take the update of every optimizer that is an Adam over."""
        if importlib.util.find_spec("torchao") is None:
            raise Refused(MISSING)
        for optimizer in self.scene.optimizers():
            self.on_optimizer(optimizer)
        if self.scene.optimizers() and not self._taken:
            raise Refused("no optimizer is an Adam or AdamW whose implementation the script left open")

    def on_optimizer(self, optimizer: Any) -> None:
        """One more, where it is an Adam."""
        if _is_plain_adam(self.scene.torch, optimizer):
            one = EightBitAdam(self.scene.torch, optimizer, self._give_up)
            one.take_over()
            self._taken.append(one)

    def undo(self) -> None:
        """Give the update back, and the averages in float32."""
        for one in self._taken:
            one.give_back()
        self._taken = []

    def _give_up(self, reason: str) -> None:
        self.useless = reason


def _is_open(optimizer: Any) -> bool:
    return (
        optimizer["name"] in _NAMES
        and optimizer["supports_fused"]
        and not optimizer["fused"]
        and optimizer["foreach"] is None
    )


def _is_plain_adam(torch: Any, optimizer: Any) -> bool:
    if type(optimizer) not in (torch.optim.Adam, torch.optim.AdamW) or not supports_fused(optimizer):
        return False
    return not any(
        group.get("amsgrad")
        or group.get("maximize")
        or group.get("fused") is not None
        or group.get("foreach") is not None
        or any(type(one) is not torch.nn.Parameter for one in group["params"])
        for group in optimizer.param_groups
    )
