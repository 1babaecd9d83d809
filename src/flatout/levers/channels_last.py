"""Images with their channels last."""

from typing import Any

from flatout.levers.job import JobFacts, amdahl
from flatout.levers.lever import Call, Lever, Scene, Settings


class ChannelsLast(Lever):
    """Images and convolution weights with their channels last in memory.

    Tensor cores want channels next to each other; in the usual order cuDNN transposes before and after each
    convolution. Shapes stay as they are, only strides change; checkpoints hold the same values.
    """

    id = "channels-last"
    title = "channels last"
    safety = "numeric"
    reorders = True
    layer = 30

    @classmethod
    def check(cls, job: JobFacts) -> str:
        """Needs two-dimensional convolutions in the usual order."""
        if not job.habit("convolutions"):
            return "the model has no two-dimensional convolution"
        if job.habit("channels_last"):
            return "the script uses it already"
        return ""

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """Convolutions in low precision gain most."""
        shares = job.device_shares or job.host_shares
        model = shares.get("forward", 0.0) + shares.get("backward", 0.0)
        return amdahl(model, 1.3 if job.products_dtype in ("bf16", "fp16", "tf32") else 1.1)

    def __init__(self, scene: Scene, settings: Settings) -> None:
        super().__init__(scene, settings)
        # Parameters with the strides they had, and where they lay while it was on before.
        self._found: list[tuple[Any, tuple[int, ...]]] = []
        self._places: dict[Any, Any] = {}

    def apply(self) -> None:
        """Change the strides of every four-dimensional parameter; each remembers what it had."""
        torch = self.scene.torch
        with torch.no_grad():
            for root in self.scene.roots():
                for parameter in root.parameters():
                    if parameter.dim() == 4 and parameter.is_contiguous():
                        self._found.append((parameter, parameter.stride()))
                        last = self._places.pop(parameter, None)
                        if not _suits(last, parameter):
                            last = torch.empty_like(parameter, memory_format=torch.channels_last)
                        parameter.data = last.copy_(parameter.data)
                        self._take_along(parameter)

    def undo(self) -> None:
        """Put the strides back; the place is kept, since CUDA graphs that were recorded know it."""
        torch = self.scene.torch
        with torch.no_grad():
            for parameter, stride in self._found:
                self._places[parameter] = parameter.data
                plain = torch.empty_strided(
                    parameter.shape, stride, dtype=parameter.dtype, device=parameter.device
                )
                parameter.data = plain.copy_(parameter.data)
                self._take_along(parameter)
        self._found = []

    def _take_along(self, parameter: Any) -> None:
        """Its gradient and its optimizer's state get its strides: fused optimizers insist on that."""
        torch = self.scene.torch

        def along(tensor: Any) -> Any:
            like = torch.empty_like(parameter, dtype=tensor.dtype, device=tensor.device)
            return like.copy_(tensor)

        def lies_otherwise(value: Any) -> bool:
            plain = type(value) is torch.Tensor and value.shape == parameter.shape
            return plain and value.stride() != parameter.stride()

        if lies_otherwise(parameter.grad):
            parameter.grad = along(parameter.grad)
        for optimizer in self.scene.optimizers():
            state = optimizer.state.get(parameter, {})
            for name, value in state.items():
                if lies_otherwise(value):
                    state[name] = along(value)

    def around(self, root: Any, call: Call) -> Call:
        """Images come in with their channels last."""
        last = self.scene.torch.channels_last

        def changed(value: Any) -> Any:
            if hasattr(value, "dim") and value.dim() == 4 and value.is_floating_point():
                return value.contiguous(memory_format=last)
            return value

        def with_channels_last(*args: Any, **kwargs: Any) -> Any:
            return call(*map(changed, args), **{name: changed(value) for name, value in kwargs.items()})

        return with_channels_last


def _suits(place: Any, parameter: Any) -> bool:
    """Whether a place that was kept is still one for it: the script may have changed it since."""
    if place is None:
        return False
    return bool(
        (place.shape, place.dtype, place.device) == (parameter.shape, parameter.dtype, parameter.device)
    )
