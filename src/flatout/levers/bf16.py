"""bf16 autocast around the model's call."""

from typing import Any

from flatout.levers.float32_outputs import Float32Outputs
from flatout.levers.job import JobFacts, amdahl
from flatout.levers.lever import Call, Lever, Refused, Scene, Settings


class Bf16(Lever):
    """bf16 autocast around the call of the model.

    Products and convolutions run in bf16, which keeps the range of float32 and needs no loss scaling;
    reductions, losses and norms stay in float32, and so do parameters, gradients and optimizer. What the
    model returns is given back in float32, as the script expects; where the script's source shows that
    nothing but a cross entropy gets it, that takes it as it is, under autocast too. On small, launch-bound
    models the casts can cost more than they save: measured, never assumed.
    """

    id = "bf16"
    title = "bf16 autocast"
    safety = "numeric"
    roundoff = 2.0**-9
    layer = 40

    @classmethod
    def check(cls, job: JobFacts) -> str:
        """Needs hardware that computes in bf16, and a script that leaves precision alone."""
        if job.habit("autocast"):
            return f"the script autocasts itself, to {job.habit('autocast')}"
        if job.habit("scales_loss"):
            return "the script scales its loss, which is made for fp16"
        if job.habit("parameter_dtype", "float32") != "float32":
            return f"parameters are in {job.habit('parameter_dtype')}"
        if job.on_gpu and job.capability is not None and job.capability < (8, 0):
            return "this GPU computes no faster in bf16: that came with compute capability 8.0"
        if not job.on_gpu and not job.habit("cpu_bf16"):
            return "this CPU has no instructions for bf16"
        return ""

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """What the peaks promise for the products of a step; half the bytes for some of the rest."""
        by_products = job.speedup_by_dtype("bf16")
        return by_products if job.on_gpu else max(by_products, amdahl(0.3, 1.5))

    def __init__(self, scene: Scene, settings: Settings) -> None:
        super().__init__(scene, settings)
        self._outputs = Float32Outputs(scene, self.id, self.layer, scene.torch.bfloat16)

    def apply(self) -> None:
        """Nothing to change yet; a plan from elsewhere may meet a device or script that it does not suit."""
        torch, device = self.scene.torch, self.scene.device
        if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
            raise Refused("this GPU computes no faster in bf16: that came with compute capability 8.0")
        if torch.is_autocast_enabled(device.type):
            raise Refused("the script autocasts itself")

    def undo(self) -> None:
        """Leave torch's cross entropy alone."""
        self._outputs.leave()

    def around(self, root: Any, call: Call) -> Call:
        """Autocast inside, float32 outside, unless the loss is all that comes after."""
        torch, kind, outputs = self.scene.torch, self.scene.device.type, self._outputs

        def with_autocast(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(kind, dtype=torch.bfloat16):
                result = call(*args, **kwargs)
            return outputs.given_back(root, result)

        return with_autocast
