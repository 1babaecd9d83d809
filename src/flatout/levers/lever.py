"""What every lever offers, in both of the processes in which it lives.

In Flatout's own process: `check` says from what the baseline showed whether it may be tried, `variants` with
which settings, `predict` what it should give. In the user's process: `apply` and `undo`, between two steps of
the running job, and `around`, for what has to happen around the call of a root module.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Literal, Protocol

from flatout.levers.job import JobFacts

Call = Callable[..., Any]
# The same numbers bit for bit; other draws of the same; other rounding; less memory for more work; another
# training.
Safety = Literal["exact", "resampled", "numeric", "memory", "recipe"]
Settings = dict[str, Any]
ONLY_ALLOWED = "it changes the training: only with --allow and its name"


class Refused(Exception):
    """A lever cannot be applied to this job; the message says why. Nothing was changed."""


class Broken(Exception):
    """A lever that was on can hold no longer; raised in a call, which is then run as written."""

    def __init__(self, lever: str, why: str) -> None:
        super().__init__(why)
        self.lever = lever


class Scene(Protocol):
    """What a lever sees of the user's process."""

    torch: Any
    # The device on which the model trains.
    device: Any

    def optimizers(self) -> list[Any]:
        """Every optimizer of the process that lives."""

    def roots(self) -> list[Any]:
        """The modules that train."""

    def is_on(self, lever: str) -> "Lever | None":
        """A lever that is on, by its id."""

    def note(self, lever: str, text: str) -> None:
        """A part of a lever does not work here, and the rest of it does: for the user to know."""

    @property
    def infers(self) -> bool:
        """Whether nothing trains here: calls without gradients are what the job is there for."""

    @property
    def same_random(self) -> bool:
        """Whether this run must draw the random numbers that the script would draw as written."""


class Lever:
    """A change of the job that can be taken back. Subclasses say what and how; this one changes nothing."""

    id: ClassVar[str]
    # In a word or three, for tables.
    title: ClassVar[str]
    safety: ClassVar[Safety]
    # By how much numbers may differ, relative to themselves: the unit roundoff of what it computes in.
    roundoff: ClassVar[float] = 2.0**-23
    # Whether it adds up the same in another order, or by another kernel, in whatever the job computes in.
    reorders: ClassVar[bool] = False
    # Whether it can be applied and undone between two steps; others need a process of their own.
    switchable: ClassVar[bool] = True
    # Its place around the call of a root: higher is further out. 0: it has none.
    layer: ClassVar[int] = 0
    # Whether the model is another one while it is on: evaluation goes through `around` too, and the model can
    # be called as written only when it is off.
    remakes: ClassVar[bool] = False
    # Ids of levers without which it does nothing.
    needs: ClassVar[tuple[str, ...]] = ()
    # Ids of levers that must not be on beside it; of two that were kept, the faster stays.
    conflicts: ClassVar[tuple[str, ...]] = ()

    def __init__(self, scene: Scene, settings: Settings) -> None:
        self.scene = scene
        self.settings = settings
        # Set by a lever that finds in a call that it does nothing: the call's result stands, and it goes.
        self.useless = ""

    # In Flatout's process

    @classmethod
    def check(cls, job: JobFacts) -> str:
        """Why it must not or need not be tried on this job; empty where it may."""
        return ""

    @classmethod
    def is_for_memory(cls, job: JobFacts) -> bool:
        """Whether it saves this job memory rather than time: it is tried where that is the goal."""
        return cls.safety == "memory"

    @classmethod
    def variants(cls, job: JobFacts) -> tuple[Settings, ...]:
        """The settings to try, the most promising first."""
        return ({},)

    @classmethod
    def check_settings(cls, job: JobFacts, settings: Settings) -> str:
        """Why these settings do not hold for this job, though others may; empty where they do."""
        return ""

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """How many times faster a step should be."""
        return 1.0

    @classmethod
    def tolerance(cls, job: JobFacts) -> float:
        """By how much numbers of this job may differ under it, relative to themselves."""
        return max(cls.roundoff, job.roundoff) if cls.reorders else cls.roundoff

    # In the user's process

    @classmethod
    def stand_by(cls, torch: Any) -> None:
        """Before the script calls anything: what must be in its place by the call in which it comes on."""

    def apply(self) -> None:
        """Make the change; raises Refused where that cannot be."""

    def undo(self) -> None:
        """Put everything back exactly as it was found."""

    def around(self, root: Any, call: Call) -> Call:
        """The call of a root while this lever is on."""
        return call

    def on_optimizer(self, optimizer: Any) -> None:
        """An optimizer was made while this lever is on."""

    def updated(self, optimizer: Any) -> None:
        """An optimizer has made an update, or a scaler has left one out, while this lever is on."""

    def let_go(self) -> None:
        """It was dropped for good, and the step in which it was is over: keep nothing."""
