"""How torch's allocator asks the driver for memory."""

import os
from typing import Any

from flatout.levers.job import JobFacts
from flatout.levers.lever import Lever, Refused, Settings


class Allocator(Lever):
    """Memory segments that grow (`expandable_segments`), where the allocator has to start over.

    An allocator that finds no room gives everything back to the driver and asks anew: the GPU stands still
    meanwhile. Segments that grow leave fewer gaps. Tried where such retries were seen, and where a plan must
    fit into less memory; refused where the environment configures the allocator.
    """

    id = "allocator"
    title = "growing segments"
    safety = "exact"

    @classmethod
    def check(cls, job: JobFacts) -> str:
        """Only where the allocator was seen to start over."""
        if not job.on_gpu:
            return "the job does not train on a GPU"
        if job.habit("allocator_settings"):
            return f"the environment configures it: {job.habit('allocator_settings')}"
        if not job.habit("allocation_retries"):
            return "the allocator never had to start over"
        return ""

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """Each retry costs some milliseconds; how often it comes back is not known."""
        return 1.02

    def apply(self) -> None:
        """From here on new segments grow."""
        if own := settings_in_the_environment():
            raise Refused(f"the environment configures it: {own}")
        _set(self.scene.torch, "expandable_segments:True")

    def undo(self) -> None:
        """As it was; segments that exist stay as they are."""
        _set(self.scene.torch, "expandable_segments:False")


def settings_in_the_environment() -> str:
    """What the user has set, by either of the names that torch knows."""
    return os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")


def _set(torch: Any, settings: str) -> None:
    for owner, name in (
        (torch._C, "_accelerator_setAllocatorSettings"),  # noqa: SLF001
        (torch.cuda.memory, "_set_allocator_settings"),
    ):
        call = getattr(owner, name, None)
        if call is not None:
            call(settings)
            return
    raise Refused("this torch cannot change its allocator's settings in a running process")
