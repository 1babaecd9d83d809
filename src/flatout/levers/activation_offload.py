"""Activations that wait for the backward pass in the host's memory."""

from typing import Any

from flatout.levers.compile import WITH_GRAPHS
from flatout.levers.job import JobFacts
from flatout.levers.lever import Call, Lever, Refused, Scene, Settings
from flatout.levers.saved_tensors import SavedTensors


class ActivationOffload(Lever):
    """Activations are copied to the host as they are made, and come back before the backward pass needs them.

    Numbers stay the same, bit for bit. Copies travel on streams of their own while the device computes, and
    each is asked for a few ahead of its time; where the device computes faster than the link carries, it
    waits for them. Parameters, small tensors and what the backward pass needs first stay. `share` says how
    much goes. Takes as much of the host's memory, and stops before that runs short. Not beside CUDA graphs,
    whose memory stays theirs. Only tried where the goal is less memory, or where a plan must fit into some.
    """

    id = "activation-offload"
    title = "activation offload"
    safety = "memory"
    layer = 15
    conflicts = ("activation-budget", "block-checkpointing", "hf-checkpointing")

    @classmethod
    def check(cls, job: JobFacts) -> str:
        """Needs a host that is not the device."""
        return "" if job.on_gpu else "the job does not train on a GPU"

    @classmethod
    def variants(cls, job: JobFacts) -> tuple[Settings, ...]:
        """What saves most first: less of it where that costs too much time."""
        return {"share": 1.0}, {"share": 0.5}

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """Links carry less than devices make, as a rule: to compute it again is about as dear."""
        return 1.0 / (1.0 + 0.5 * float(settings.get("share", 1.0)))

    def __init__(self, scene: Scene, settings: Settings) -> None:
        super().__init__(scene, settings)
        # For all roots together: they share the link.
        self._saved: SavedTensors | None = None

    def apply(self) -> None:
        """From the next call of the model on."""
        compiled = self.scene.is_on("compile")
        if compiled is not None and compiled.settings.get("mode") in WITH_GRAPHS:
            raise Refused("CUDA graphs keep activations in memory of their own")

    def around(self, root: Any, call: Call) -> Call:
        """What the call saves for the way back goes through our hands."""
        torch, share = self.scene.torch, float(self.settings.get("share", 1.0))
        saved = self._saved = self._saved or SavedTensors(torch, self.scene.device, share)

        def offloaded(*args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return call(*args, **kwargs)
            saved.begin(root)
            with torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
                return call(*args, **kwargs)

        return offloaded
