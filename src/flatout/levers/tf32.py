"""TF32 products."""

from typing import Any

from flatout.levers.job import JobFacts
from flatout.levers.lever import Lever, Refused, Settings


class Tf32(Lever):
    """Products of float32 matrices on tensor cores, in TF32.

    Inputs are rounded to 10 bits of mantissa, sums stay in float32. On an H200 a product runs up to eight
    times faster. Nothing else changes: parameters, gradients and optimizer stay in float32. Worth trying
    first, and worth little where autocast already moves the products to bf16.
    """

    id = "tf32"
    title = "TF32 products"
    safety = "numeric"
    roundoff = 2.0**-11

    @classmethod
    def check(cls, job: JobFacts) -> str:
        """Needs an NVIDIA GPU from Ampere on, and products in float32."""
        if not job.on_gpu:
            return "the job does not train on a GPU"
        if job.capability is not None and job.capability < (8, 0):
            return "this GPU has no TF32: it came with compute capability 8.0"
        if job.habit("tf32"):
            return "the script turns it on itself"
        if job.habit("parameter_dtype", "float32") != "float32":
            return f"parameters are in {job.habit('parameter_dtype')}"
        return ""

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """What the peaks of both promise for the products of a step."""
        return job.speedup_by_dtype("tf32")

    def apply(self) -> None:
        """Through the API that the script uses: mixing the old one and the new one raises."""
        if self.scene.device.type != "cuda":
            raise Refused("the job does not train on a GPU")
        matmul, cudnn = self.scene.torch.backends.cuda.matmul, self.scene.torch.backends.cudnn
        self._words = [(matmul, matmul.fp32_precision)] if hasattr(matmul, "fp32_precision") else []
        try:
            self._found: list[tuple[Any, str, Any]] = [
                (matmul, "allow_tf32", matmul.allow_tf32),
                (cudnn, "allow_tf32", cudnn.allow_tf32),
            ]
            wanted: Any = True
        except RuntimeError:  # the script has used the new names
            places = [matmul, getattr(cudnn, "conv", cudnn), getattr(cudnn, "rnn", cudnn)]
            self._found = [(place, "fp32_precision", place.fp32_precision) for place in places]
            wanted = "tf32"
        for place, name, _ in self._found:
            setattr(place, name, wanted)

    def undo(self) -> None:
        """Put the switches back."""
        for place, name, found in self._found:
            setattr(place, name, found)
        for place, found in self._words:
            # "none" and "ieee" compute the same, but what was compiled under one is compiled anew under the
            # other; the old switch alone would leave "ieee".
            place.fp32_precision = found
