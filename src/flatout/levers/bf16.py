"""bf16 autocast around the model's call."""

from typing import Any

from flatout.levers.job import JobFacts, amdahl
from flatout.levers.lever import Call, Lever, Refused, Scene, Settings
from flatout.levers.loss_function import loss_function
from flatout.levers.loss_reading import Checks, goes_into_the_loss_alone, still_holds
from flatout.levers.outputs import map_tensors
from flatout.levers.places import users_frame


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
        # By place in the script: what must hold there for the output to go into a loss alone, or None.
        self._places: dict[tuple[Any, int], Checks | None] = {}
        self._stands_around_the_loss = False

    def apply(self) -> None:
        """Nothing to change yet; a plan from elsewhere may meet a device or script that it does not suit."""
        torch, device = self.scene.torch, self.scene.device
        if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
            raise Refused("this GPU computes no faster in bf16: that came with compute capability 8.0")
        if torch.is_autocast_enabled(device.type):
            raise Refused("the script autocasts itself")

    def undo(self) -> None:
        """Leave torch's cross entropy alone."""
        loss_function(self.scene.torch).take(self.id)
        self._stands_around_the_loss = False

    def around(self, root: Any, call: Call) -> Call:
        """Autocast inside, float32 outside, unless the loss is all that comes after."""
        torch, kind = self.scene.torch, self.scene.device.type
        bf16, low, tensor_kind = torch.bfloat16, (torch.bfloat16, torch.float16), torch.Tensor

        def in_float32(tensor: Any) -> Any:
            return tensor.float() if tensor.dtype in low else tensor

        def with_autocast(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(kind, dtype=bf16):
                result = call(*args, **kwargs)
            if isinstance(result, tensor_kind) and self._loss_comes_next(root):
                return result
            return map_tensors(in_float32, result)

        return with_autocast

    def _loss_comes_next(self, root: Any) -> bool:
        frame = users_frame(self.scene.torch)
        if frame is None:
            return False
        place = (frame.f_code, frame.f_lineno)
        if place not in self._places:
            self._places[place] = goes_into_the_loss_alone(frame, root, self.scene.torch)
        checks = self._places[place]
        if checks is None or not still_holds(checks, frame):
            return False
        if not self._stands_around_the_loss:
            self._stands_around_the_loss = True
            loss_function(self.scene.torch).put(self.id, self.layer, self._with_autocast)
        return True

    def _with_autocast(self, call: Call) -> Call:
        torch, kind = self.scene.torch, self.scene.device.type
        bf16 = torch.bfloat16

        def cross_entropy(input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002 - it is called so
            if getattr(input, "dtype", None) is not bf16:
                return call(input, *args, **kwargs)
            with torch.autocast(kind, dtype=bf16):
                return call(input, *args, **kwargs)

        return cross_entropy
