"""cuDNN's own search for the fastest convolution."""

from flatout.levers.job import JobFacts, amdahl
from flatout.levers.lever import Lever, Refused, Settings


class CudnnAutotune(Lever):
    """cuDNN measures its algorithms for each shape of convolution, and keeps the fastest.

    Pays where shapes stay the same; each new shape is measured anew. Refused where the script asks for
    deterministic algorithms.
    """

    id = "cudnn-autotune"
    title = "cuDNN autotune"
    safety = "numeric"
    reorders = True

    @classmethod
    def check(cls, job: JobFacts) -> str:
        """Needs convolutions on a GPU, and a few shapes."""
        if not job.on_gpu:
            return "the job does not train on a GPU"
        if not job.habit("convolutions"):
            return "the model has no convolution"
        if job.habit("cudnn_benchmark"):
            return "the script uses it already"
        if job.habit("deterministic"):
            return "the script asks for deterministic algorithms"
        if job.habit("input_shapes", 1) > 8:
            return f"inputs came in {job.habit('input_shapes')} shapes: each would be measured anew"
        return ""

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """A tenth of the model's time."""
        shares = job.device_shares or job.host_shares
        return amdahl(shares.get("forward", 0.0) + shares.get("backward", 0.0), 1.1)

    def apply(self) -> None:
        """Turn it on."""
        if self.scene.device.type != "cuda":
            raise Refused("the job does not train on a GPU")
        cudnn = self.scene.torch.backends.cudnn
        self._found, cudnn.benchmark = cudnn.benchmark, True

    def undo(self) -> None:
        """As it was."""
        self.scene.torch.backends.cudnn.benchmark = self._found
