"""Which kernel computes attention."""

import importlib
from typing import Any

from flatout.levers.job import JobFacts, amdahl
from flatout.levers.lever import Lever, Refused, Settings

_BACKENDS = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}


class SdpaBackend(Lever):
    """The kernel of `scaled_dot_product_attention` that is fastest for this job's shapes.

    torch picks one by rules; which is fastest depends on shapes, dtype and card. Each is tried in the job
    itself. The others stay allowed behind it, for shapes that it cannot do. Refused where the script chooses
    a kernel itself.
    """

    id = "sdpa-backend"
    title = "attention kernel"
    safety = "numeric"
    roundoff = 2.0**-9
    # It changes what is compiled: below the compiler, and no wrapper of its own.
    layer = 8

    @classmethod
    def check(cls, job: JobFacts) -> str:
        """Needs fused attention on a GPU: the script's own, or that of the lever `attention`."""
        if not job.on_gpu:
            return "the job does not train on a GPU"
        operators = job.habit("operators") or ()
        if not any("scaled_dot_product" in name or name == "aten._softmax" for name in operators):
            return "the model has no attention"
        if job.habit("sdpa_kernel"):
            return "the script chooses the kernel itself"
        return ""

    @classmethod
    def variants(cls, job: JobFacts) -> tuple[Settings, ...]:
        """cuDNN's came last and is often the fastest on Hopper."""
        return ({"first": "cudnn"}, {"first": "flash"})

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """A fifth of what attention may be of the model."""
        shares = job.device_shares or job.host_shares
        return amdahl(0.25 * (shares.get("forward", 0.0) + shares.get("backward", 0.0)), 1.25)

    def apply(self) -> None:
        """Put it first."""
        attention: Any = importlib.import_module("torch.nn.attention")
        first = _BACKENDS[self.settings.get("first", "cudnn")]
        if not hasattr(attention.SDPBackend, first):
            raise Refused(f"this torch has no attention kernel {self.settings.get('first')!r}")
        others = [name for name in (*_BACKENDS.values(), "MATH") if name != first]
        order = [getattr(attention.SDPBackend, name) for name in (first, *others)]
        self._context = attention.sdpa_kernel(order, set_priority=True)
        self._context.__enter__()

    def undo(self) -> None:
        """As it was."""
        self._context.__exit__(None, None, None)
