"""MLflow: a run in an experiment, through a client that changes nothing of what the script set up."""

import logging
import re
import sys
from collections.abc import Sequence
from typing import Any

from flatout.monitor.sinks.protocol import WENT_WELL, About, Ending
from flatout.records.points import Point

# Of `log_batch`, in one call.
_METRICS_AT_MOST = 1000
_NOT_IN_NAMES = re.compile(r"[^\w\-. :/]", re.ASCII)


def active_run() -> str:
    """The run that the script has begun, by its id; asked in the script's thread, since each has its own."""
    mlflow: Any = sys.modules.get("mlflow")
    active = mlflow.active_run() if mlflow is not None else None
    return str(active.info.run_id) if active is not None else ""


class MlflowRun:
    """Metrics of one run, where MLflow's own settings say: MLFLOW_TRACKING_URI, or its default."""

    def __init__(self, experiment: str, about: About) -> None:
        import mlflow
        from mlflow.entities import Metric

        # It tells of each table that it makes, in the script's own output.
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
        self.note = ""
        self._metric = Metric
        self._client: Any = mlflow.MlflowClient()
        self._is_ours = not about.own_run
        if about.own_run:
            self._run: str = about.own_run
            return
        found = self._client.get_experiment_by_name(experiment or "Default")
        number = found.experiment_id if found is not None else self._client.create_experiment(experiment)
        run = self._client.create_run(number, run_name=about.name or None, tags=dict(about.facts))
        self._run = run.info.run_id

    def write(self, points: Sequence[Point]) -> None:
        """As few calls as MLflow allows."""
        metrics = [
            self._metric(_NOT_IN_NAMES.sub("_", name), value, round(point.at_unix_s * 1000), point.step)
            for point in points
            for name, value in point.values.items()
        ]
        for first in range(0, len(metrics), _METRICS_AT_MOST):
            self._client.log_batch(self._run, metrics=metrics[first : first + _METRICS_AT_MOST])

    def close(self, ending: Ending = WENT_WELL, /) -> None:
        """End the run, unless the script began it."""
        if self._is_ours:
            self._client.set_terminated(self._run, _status(ending))


def _status(ending: Ending) -> str:
    if ending.was_killed:
        return "KILLED"
    return "FAILED" if ending.exit_code else "FINISHED"
