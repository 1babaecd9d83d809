"""fp16 autocast with loss scaling, for cards without bf16."""

from collections.abc import Iterator
from typing import Any

from flatout.levers.float32_outputs import Float32Outputs
from flatout.levers.job import JobFacts
from flatout.levers.lever import Broken, Call, Lever, Refused, Scene, Settings
from flatout.levers.loss_scaling import LossScaling
from flatout.levers.outputs import map_tensors

_BF16_IS_BETTER = "bf16 does the same without scaling"
_SEVERAL = "the script has several optimizers: which of them an overflow concerns is not known"


class Fp16(Lever):
    """fp16 autocast around the call of the model, with dynamic loss scaling. Only with `--allow fp16`.

    For NVIDIA GPUs before compute capability 8.0, whose tensor cores know no bf16. fp16 ends at 65,504 and
    loses what is small: backward passes start from a loss times a power of two, and each parameter's gradient
    is brought back to its true size before the script sees it, so that accumulating and clipping stay as they
    are. Where a gradient overflows, that update is skipped and the scale halved; it doubles after 2,000
    updates without. That is why it changes the training: some updates are not made, and activations above
    65,504 become infinite whatever the scale. Gradients inside of the model are scaled for whoever looks
    there. Refused where the script autocasts or scales its loss, for several optimizers or ranks, and for
    optimizers that call the model themselves.
    """

    id = "fp16"
    title = "fp16 autocast"
    safety = "recipe"
    roundoff = 2.0**-11
    layer = 40
    conflicts = ("bf16", "bf16-parameters")

    @classmethod
    def check(cls, job: JobFacts) -> str:
        """A card without bf16, one optimizer that updates once a step, and precision left alone."""
        if not job.on_gpu:
            return "the job does not train on a GPU"
        if job.capability is None:
            return "the GPU's compute capability is not known"
        if job.capability >= (8, 0):
            return _BF16_IS_BETTER
        if job.habit("autocast"):
            return f"the script autocasts itself, to {job.habit('autocast')}"
        if job.habit("scales_loss"):
            return "the script scales its loss itself"
        if job.habit("parameter_dtype", "float32") != "float32":
            return f"parameters are in {job.habit('parameter_dtype')}"
        if job.ranks > 1:
            return "with several ranks, all must skip the same updates, which it does not see to"
        optimizers = job.habit("optimizers", ())
        if not optimizers:
            return "no optimizer was seen"
        if len(optimizers) > 1:
            return _SEVERAL
        if optimizers[0]["name"] == "LBFGS":
            return "LBFGS calls the model several times in an update, and each call could overflow"
        return ""

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """What the peaks promise for the products of a step."""
        return job.speedup_by_dtype("fp16")

    def __init__(self, scene: Scene, settings: Settings) -> None:
        super().__init__(scene, settings)
        self._outputs = Float32Outputs(scene, self.id, self.layer, scene.torch.float16)
        self.scaling = LossScaling(scene.torch, self._leaves)

    def apply(self) -> None:
        """Stand around backward passes and updates; nothing of the model or the optimizer changes."""
        torch, device = self.scene.torch, self.scene.device
        if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0):
            raise Refused(_BF16_IS_BETTER)
        if torch.is_autocast_enabled(device.type):
            raise Refused("the script autocasts itself")
        optimizers = self.scene.optimizers()
        self._insist_on_one(optimizers)
        self.scaling.start(optimizers)

    def undo(self) -> None:
        """Scale and skip nothing any more."""
        self.scaling.stop()
        self._outputs.leave()

    def on_optimizer(self, optimizer: Any) -> None:
        """One that takes the place of another is watched; one beside another is too much."""
        self._insist_on_one(self.scene.optimizers())
        self.scaling.watch(optimizer)

    def around(self, root: Any, call: Call) -> Call:
        """Autocast inside, float32 outside, unless the loss is all that comes after."""
        torch, kind, outputs = self.scene.torch, self.scene.device.type, self._outputs

        def with_autocast(*args: Any, **kwargs: Any) -> Any:
            self.useless = self.scaling.problem
            map_tensors(self._insist_on_no_gradient, (args, kwargs))
            with torch.autocast(kind, dtype=torch.float16):
                result = call(*args, **kwargs)
            return outputs.given_back(root, result)

        return with_autocast

    def _insist_on_no_gradient(self, tensor: Any) -> Any:
        if tensor.requires_grad and tensor.is_leaf and not any(tensor is leaf for leaf in self._leaves()):
            raise Broken(self.id, "an input of the model gets a gradient, which would be scaled")
        return tensor

    def _insist_on_one(self, optimizers: list[Any]) -> None:
        if len(optimizers) > 1:
            raise Refused(_SEVERAL)
        if any(type(one).__name__ == "LBFGS" for one in optimizers):
            raise Refused("LBFGS calls the model several times in an update, and each call could overflow")
        distributed = self.scene.torch.distributed
        if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
            raise Refused("with several ranks, all must skip the same updates, which it does not see to")

    def _leaves(self) -> Iterator[Any]:
        for root in self.scene.roots():
            yield from root.parameters()
        for optimizer in self.scene.optimizers():
            for group in optimizer.param_groups:
                yield from group["params"]
