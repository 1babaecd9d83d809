"""The step that is under way: counters that the taps add to, closed at each optimizer update."""

import dataclasses
from typing import Any


@dataclasses.dataclass
class StepDraft:
    """Nanoseconds on the host, counts, and the losses seen since the last update."""

    started_ns: int
    loader_ns: int = 0
    loader_batches: int = 0
    forward_ns: int = 0
    forwards: int = 0
    backward_ns: int = 0
    backwards: int = 0
    optimizer_ns: int = 0
    collector_ns: int = 0
    evaluation_ns: int = 0
    evaluations: int = 0
    skipped_updates: int = 0
    samples: int = 0
    losses: list[float] = dataclasses.field(default_factory=list)

    def copy(self) -> "StepDraft":
        """The same counts, to be closed later."""
        return dataclasses.replace(self, losses=list(self.losses))

    def after(self, earlier: "StepDraft", started_ns: int) -> "StepDraft":
        """What has been added since `earlier` was copied."""
        rest = StepDraft(started_ns=started_ns, losses=self.losses[len(earlier.losses) :])
        for field in dataclasses.fields(self):
            if field.name not in ("started_ns", "losses"):
                setattr(rest, field.name, getattr(self, field.name) - getattr(earlier, field.name))
        return rest

    def finished(self, number: int, ended_ns: int) -> dict[str, Any]:
        """The step as a plain record."""
        record = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {"update": number, "ended_ns": ended_ns, **record}
