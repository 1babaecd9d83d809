"""W&B: a run of its own, or the one that the script has begun. Works offline, as W&B's own settings say.

Steps go in as a metric that the others are drawn over: W&B's own step may never go back, and drops what does.
In a run that the script began this holds for what we log alone: its own charts keep the axis that they have.
"""

from collections.abc import Sequence
from typing import Any

from flatout.monitor.sinks.protocol import WENT_WELL, About, Ending
from flatout.records.points import Point

STEP = "step"
# In a run of the script's own, which may have a metric of that name.
STEP_BESIDE = "flatout/step"
# For an answer of the service, when a run begins.
_INIT_S = 15.0


class WandbRun:
    """Rows in the history of a run."""

    def __init__(self, project: str, about: About) -> None:
        import wandb

        self.note = ""
        self._is_ours = wandb.run is None
        run: Any = wandb.run if wandb.run is not None else self._begun(wandb, project, about)
        self._run = run
        self._step = STEP if self._is_ours else STEP_BESIDE
        self._defined: set[str] = set()
        run.define_metric(self._step)
        if self._is_ours:
            run.define_metric("*", step_metric=self._step)

    def _begun(self, wandb: Any, project: str, about: About) -> Any:
        """A new run; where the service does not answer, one that `wandb sync` uploads another day."""
        entity, _, name = project.rpartition("/")
        given = {
            "project": name or None,
            "entity": entity or None,
            "name": about.name or None,
            "config": dict(about.facts) or None,
        }
        # The script's output is its own, and its figures come from us.
        quiet = {"console": "off", "x_disable_stats": True, "silent": True, "init_timeout": _INIT_S}
        try:
            return wandb.init(**given, settings=wandb.Settings(**quiet))
        except (wandb.Error, OSError) as error:
            self.note = f"the service cannot be reached, so the run is kept offline: {str(error).strip()}"
            return wandb.init(**given, mode="offline", settings=wandb.Settings(**quiet))

    def write(self, points: Sequence[Point]) -> None:
        """A row a point."""
        for point in points:
            if not self._is_ours:
                for name in point.values.keys() - self._defined:
                    self._run.define_metric(name, step_metric=self._step)
                    self._defined.add(name)
            self._run.log({**point.values, self._step: point.step, "_timestamp": point.at_unix_s})

    def close(self, ending: Ending = WENT_WELL, /) -> None:
        """End the run, unless the script began it."""
        if self._is_ours:
            self._run.finish(exit_code=ending.exit_code)
