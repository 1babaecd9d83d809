"""Linear layers in float8."""

import importlib.util

from flatout.levers.float8_layers import Float8Layers
from flatout.levers.job import JobFacts
from flatout.levers.lever import Lever, Refused, Scene, Settings
from flatout.levers.torchao import MISSING

_TOO_OLD = "this GPU has no float8: it came with compute capability 8.9"


class Fp8(Lever):
    """Products of linear layers in float8 (torchao, one scale a tensor). Only with `--allow fp8`.

    Inputs, weights and gradients are scaled and rounded to 8 bits just before each product; sums, parameters
    and optimizer stay as they are. It changes the training: three bits of mantissa are little, and what is
    far below the largest value of its tensor vanishes. Layers whose sizes are no multiples of 16 stay, and so
    do those with hooks. Worth it for wide layers alone, and only beside torch.compile, which makes one kernel
    of scaling and rounding: it is tried on top of that. Evaluation runs in float8 too; parameters and
    checkpoints stay the same.
    """

    id = "fp8"
    title = "fp8 layers"
    safety = "recipe"
    roundoff = 2.0**-4
    remakes = True

    @classmethod
    def check(cls, job: JobFacts) -> str:
        """Needs torchao, a GPU with float8, and layers that it can do."""
        if not job.on_gpu:
            return "the job does not train on a GPU"
        if job.capability is not None and job.capability < (8, 9):
            return _TOO_OLD
        if "torchao" not in job.habit("packages", {}):
            return MISSING
        if not job.habit("float8_layers"):
            return "no linear layer has sizes that are multiples of 16"
        if job.habit("compiles"):
            return "the script compiles itself: its layers must not be exchanged any more"
        return ""

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """What the peaks promise for the products of a step."""
        return job.speedup_by_dtype("fp8")

    def __init__(self, scene: Scene, settings: Settings) -> None:
        super().__init__(scene, settings)
        self._layers = Float8Layers(scene.torch)

    def apply(self) -> None:
        """Exchange the layers of every root."""
        torch, device = self.scene.torch, self.scene.device
        if device.type != "cuda":
            raise Refused("the job does not train on a GPU")
        if torch.cuda.get_device_capability(device) < (8, 9):
            raise Refused(_TOO_OLD)
        if importlib.util.find_spec("torchao") is None:
            raise Refused(MISSING)
        if not sum(self._layers.put(root) for root in self.scene.roots()):
            raise Refused("no linear layer has sizes that are multiples of 16")

    def undo(self) -> None:
        """Put the layers back."""
        self._layers.take()
