"""No gradients where nothing trains."""

from typing import Any

from flatout.levers.job import JobFacts, amdahl
from flatout.levers.lever import Call, Lever, Settings


class NoGradients(Lever):
    """`torch.no_grad()` around the model's call, in a script that infers and forgot it.

    Without it every operation notes how to come back, and keeps what that would need: memory for activations
    that nobody reads, and time on the host for each operation. The same numbers come out.
    """

    id = "no-gradients"
    title = "no gradients"
    safety = "exact"
    layer = 60

    @classmethod
    def check(cls, job: JobFacts) -> str:
        """Only where nothing trains, and gradients are on."""
        if not job.habit("infers"):
            return "the job trains"
        return "" if job.habit("keeps_gradients") else "the script keeps none"

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """A tenth of the call: noting the way back is the host's work, and memory that is not reused."""
        return amdahl(job.host_shares.get("forward", 0.0), 1.1)

    def around(self, root: Any, call: Call) -> Call:
        """The call, without a way back."""
        no_grad = self.scene.torch.no_grad

        def without_gradients(*args: Any, **kwargs: Any) -> Any:
            with no_grad():
                return call(*args, **kwargs)

        return without_gradients
