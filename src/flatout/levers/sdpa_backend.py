"""Which kernel computes attention."""

import importlib
from collections.abc import Mapping
from typing import Any

from flatout.levers.attention_kernels import BACKENDS, OWN_CHOICE
from flatout.levers.job import JobFacts
from flatout.levers.lever import Lever, Refused, Settings

# By less than this a kernel is not faster than the one that torch would choose.
_FASTER = 1.03


class SdpaBackend(Lever):
    """The kernel of `scaled_dot_product_attention` that is fastest for this job's shapes.

    torch picks one by rules; which is fastest depends on shapes, dtype and card. All are timed on the job's
    own shape while the baseline runs; where one is faster than torch's own choice, it is tried in the job.
    The others stay allowed behind it, for shapes that it cannot do. Refused where the script chooses a kernel
    itself.
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
        times = job.habit("attention_ms") or {}
        if OWN_CHOICE not in times:
            return "its kernels could not be timed for this job's shape"
        if _fastest(times) is None:
            return f"torch's own choice is the fastest for this shape: {times[OWN_CHOICE]:.3f} ms"
        return ""

    @classmethod
    def variants(cls, job: JobFacts) -> tuple[Settings, ...]:
        """The fastest."""
        first = _fastest(job.habit("attention_ms") or {})
        return ({"first": first},) if first is not None else ()

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """What the kernel saves in each of its calls, of the step."""
        times = job.habit("attention_ms") or {}
        saved_ms = times.get(OWN_CHOICE, 0.0) - times.get(settings["first"], times.get(OWN_CHOICE, 0.0))
        saved_ms *= job.habit("attention_calls", 0)
        return job.step_ms / max(job.step_ms - saved_ms, 0.5 * job.step_ms) if job.step_ms else 1.0

    def apply(self) -> None:
        """Put it first."""
        attention: Any = importlib.import_module("torch.nn.attention")
        first = BACKENDS[self.settings.get("first", "cudnn")]
        if not hasattr(attention.SDPBackend, first):
            raise Refused(f"this torch has no attention kernel {self.settings.get('first')!r}")
        others = [name for name in (*BACKENDS.values(), "MATH") if name != first]
        order = [getattr(attention.SDPBackend, name) for name in (first, *others)]
        self._context = attention.sdpa_kernel(order, set_priority=True)
        self._context.__enter__()

    def undo(self) -> None:
        """As it was."""
        self._context.__exit__(None, None, None)


def _fastest(times: Mapping[str, float]) -> str | None:
    """The kernel that beats torch's own choice, if one does."""
    name = min((name for name in times if name != OWN_CHOICE), key=lambda name: times[name], default=None)
    if name is None or OWN_CHOICE not in times or times[OWN_CHOICE] < _FASTER * times[name]:
        return None
    return name
