"""Parameters, gradients and optimizer state in bfloat16."""

from collections.abc import Iterator
from typing import Any

from flatout.levers.bf16 import Bf16
from flatout.levers.float32_outputs import Float32Outputs
from flatout.levers.job import JobFacts, amdahl
from flatout.levers.lever import Call, Lever, Refused, Scene, Settings
from flatout.levers.outputs import map_tensors

_SEVERAL_RANKS = "with several ranks, gradients are exchanged in float32 buffers that were laid out before"


class Bf16Parameters(Lever):
    """Everything in bfloat16: parameters, buffers, gradients, optimizer. Only with `--allow bf16-parameters`.

    Half the memory and half the bytes of autocast, and no casts. It changes the training: bfloat16 has eight
    bits, so an update smaller than a 256th of its parameter is lost to rounding, and an average that moves by
    a thousandth a step (Adam's second) stands still. Long trainings end worse for it; watch the loss.
    Evaluation runs in bfloat16 too, and checkpoints hold bfloat16. Inputs are cast on the way in, outputs
    given back in float32. Parameters stay the objects that they are, so optimizers and schedulers notice
    nothing. Taken off, everything is float32 again, with what is left of its values.
    """

    id = "bf16-parameters"
    title = "bf16 parameters"
    safety = "recipe"
    roundoff = 2.0**-9
    layer = 40
    conflicts = ("bf16", "fp16")
    remakes = True

    @classmethod
    def check(cls, job: JobFacts) -> str:
        """Needs hardware that computes in bf16, float32 to begin with, and precision left alone."""
        if reason := Bf16.check(job):
            return reason
        if job.ranks > 1:
            return _SEVERAL_RANKS
        return ""

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """What the peaks promise for the products of a step, and half the bytes for the optimizer."""
        optimizer = (job.device_shares or job.host_shares).get("optimizer", 0.0)
        return job.speedup_by_dtype("bf16") * amdahl(optimizer, 2.0)

    def __init__(self, scene: Scene, settings: Settings) -> None:
        super().__init__(scene, settings)
        self._outputs = Float32Outputs(scene, self.id, self.layer, scene.torch.bfloat16)
        self._changed: list[Any] = []
        # Where parameters and buffers lay while it was on before.
        self._places: dict[Any, Any] = {}
        # Float32 values as found, until a first call has shown that the model can be called at all.
        self._as_found: dict[Any, Any] | None = {}
        # Buffers are often constants that the script relies on: each with its values as found.
        self._buffers: dict[Any, Any] = {}

    def apply(self) -> None:
        """Change parameters, gradients and state where they are; every object stays."""
        torch, device = self.scene.torch, self.scene.device
        if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
            raise Refused("this GPU computes no faster in bf16: that came with compute capability 8.0")
        if torch.is_autocast_enabled(device.type):
            raise Refused("the script autocasts itself")
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
            raise Refused(_SEVERAL_RANKS)
        parameters = {one for root in self.scene.roots() for one in root.parameters()}
        other = next(
            (one for one in parameters if one.is_floating_point() and one.dtype != torch.float32), None
        )
        if other is not None:
            raise Refused(f"parameters are in {str(other.dtype).removeprefix('torch.')}")
        with torch.no_grad():
            for tensor in self._tensors():
                self._lower(tensor)
        self._change_states(torch.float32, torch.bfloat16)
        self._lay_out_recurrent_weights()

    def undo(self) -> None:
        """Back to float32; the places are kept, since CUDA graphs that were recorded know them."""
        torch = self.scene.torch
        self._outputs.leave()
        with torch.no_grad():
            for tensor in self._changed:
                self._raise(tensor)
        self._change_states(torch.bfloat16, torch.float32)
        self._lay_out_recurrent_weights()
        self._changed, self._buffers = [], {}

    def around(self, root: Any, call: Call) -> Call:
        """Inputs in bfloat16, outputs in float32, unless the loss is all that comes after."""
        torch, outputs = self.scene.torch, self._outputs

        def lowered(tensor: Any) -> Any:
            return tensor.to(torch.bfloat16) if tensor.dtype == torch.float32 else tensor

        def in_bfloat16(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = map_tensors(lowered, (args, kwargs))
            result = call(*args, **kwargs)
            self._as_found = None
            return outputs.given_back(root, result)

        return in_bfloat16

    def _tensors(self) -> Iterator[Any]:
        """Every float32 parameter and buffer once, however many modules share it."""
        seen = set()
        for root in self.scene.roots():
            for tensor in (*root.parameters(), *root.buffers()):
                if tensor.dtype == self.scene.torch.float32 and tensor not in seen:
                    seen.add(tensor)
                    yield tensor

    def _lower(self, tensor: Any) -> None:
        torch = self.scene.torch
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        if not is_parameter:
            self._buffers[tensor] = tensor.data
        elif self._as_found is not None:  # on the host: the device may have no room for both
            self._as_found[tensor] = tensor.data.to("cpu", copy=True)
        place = self._places.pop(tensor, None)
        lies = (tensor.shape, tensor.stride(), tensor.device)
        if place is None or (place.shape, place.stride(), place.device) != lies:
            place = torch.empty_like(tensor, dtype=torch.bfloat16, requires_grad=False)
        gradient, tensor.grad = tensor.grad, None
        tensor.data = place.copy_(tensor.data)
        if gradient is not None:
            tensor.grad = gradient.to(torch.bfloat16)
        self._changed.append(tensor)

    def _raise(self, tensor: Any) -> None:
        torch = self.scene.torch
        low = tensor.data
        if low.dtype != torch.bfloat16:  # the script has given it something else since
            return
        self._places[tensor] = low
        found = self._buffers.get(tensor)
        gradient, tensor.grad = tensor.grad, None
        if self._as_found and tensor in self._as_found:
            tensor.data = self._as_found[tensor].to(tensor.device)
        elif found is not None and torch.equal(found.to(torch.bfloat16), low):
            tensor.data = found
        else:
            tensor.data = low.to(torch.float32)
        if gradient is not None:
            tensor.grad = gradient.to(torch.float32)

    def _change_states(self, found: Any, wanted: Any) -> None:
        """What the optimizers keep for each parameter in its shape; counters stay as they are."""
        plain, changed = self.scene.torch.Tensor, set(self._changed)
        for optimizer in self.scene.optimizers():
            for parameter, state in optimizer.state.items():
                if parameter not in changed:
                    continue
                for name, value in state.items():
                    if type(value) is plain and value.dtype == found and value.shape == parameter.shape:
                        state[name] = value.to(wanted)

    def _lay_out_recurrent_weights(self) -> None:
        """cuDNN wants the weights of a recurrent layer in one piece, and torch complains otherwise."""
        for root in self.scene.roots():
            for module in root.modules():
                if isinstance(module, self.scene.torch.nn.RNNBase):
                    module.flatten_parameters()
