"""What a model in low precision returns, given back in float32: unless only a cross entropy reads it."""

from typing import Any

from flatout.levers.lever import Call, Scene
from flatout.levers.loss_function import loss_function
from flatout.levers.loss_reading import Checks, goes_into_the_loss_alone, still_holds
from flatout.levers.outputs import map_tensors
from flatout.levers.places import users_frame


class Float32Outputs:
    """The outputs of the roots while one lever lets them compute in `dtype`.

    Scripts expect float32. Where the source shows that nothing but a cross entropy gets an output, that takes
    it as it is, under autocast, which computes it in float32.
    """

    def __init__(self, scene: Scene, lever: str, layer: int, dtype: Any) -> None:
        self._scene = scene
        self._lever = lever
        self._layer = layer
        self._dtype = dtype
        # By place in the script: what must hold there for the output to go into a loss alone, or None.
        self._places: dict[tuple[Any, int], Checks | None] = {}
        self._stands_around_the_loss = False

    def given_back(self, root: Any, result: Any) -> Any:
        """What the script gets for what the root returned."""
        torch = self._scene.torch
        low = (torch.bfloat16, torch.float16)

        def in_float32(tensor: Any) -> Any:
            return tensor.float() if tensor.dtype in low else tensor

        if isinstance(result, torch.Tensor) and self._loss_comes_next(root):
            return result
        return map_tensors(in_float32, result)

    def leave(self) -> None:
        """Leave torch's cross entropy alone."""
        loss_function(self._scene.torch).take(self._lever)
        self._stands_around_the_loss = False

    def _loss_comes_next(self, root: Any) -> bool:
        frame = users_frame(self._scene.torch)
        if frame is None:
            return False
        place = (frame.f_code, frame.f_lineno)
        if place not in self._places:
            self._places[place] = goes_into_the_loss_alone(frame, root, self._scene.torch)
        checks = self._places[place]
        if checks is None or not still_holds(checks, frame):
            return False
        if not self._stands_around_the_loss:
            self._stands_around_the_loss = True
            loss_function(self._scene.torch).put(self._lever, self._layer, self._with_autocast)
        return True

    def _with_autocast(self, call: Call) -> Call:
        torch, kind, dtype = self._scene.torch, self._scene.device.type, self._dtype

        def cross_entropy(input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002 - it is called so
            if getattr(input, "dtype", None) is not dtype:
                return call(input, *args, **kwargs)
            with torch.autocast(kind, dtype=dtype):
                return call(input, *args, **kwargs)

        return cross_entropy
