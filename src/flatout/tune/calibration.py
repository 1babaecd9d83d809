"""How good predictions are: every lever's predicted and measured gain, kept across runs on this machine."""

import contextlib
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from flatout.records.places import cache_folder
from flatout.records.tuning import LeverTrial, Reliability

CALIBRATION_FILE = "calibration.jsonl"
# Old entries say little about today's rules.
_KEPT = 2000


def record(trials: Sequence[LeverTrial], run: str, device: str) -> dict[str, Reliability]:
    """Add what was learned; what is known now of the levers that were tried. Never raises for a full disk."""
    path = cache_folder() / CALIBRATION_FILE
    new = [
        {
            "lever": trial.lever,
            "predicted": trial.predicted_speedup,
            "measured": trial.measured_speedup,
            "device": device,
            "run": run,
        }
        for trial in trials
        if trial.predicted_speedup and trial.measured_speedup
    ]
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.writelines(json.dumps(entry) + "\n" for entry in new)
    names = {str(entry["lever"]) for entry in new}
    return {name: known for name, known in reliability(path).items() if name in names}


def reliability(path: Path) -> dict[str, Reliability]:
    """By lever, over all runs: how many, and how many times the prediction was measured."""
    ratios: dict[str, list[float]] = {}
    try:
        lines = path.read_text().splitlines()[-_KEPT:]
    except OSError:
        return {}
    for line in lines:
        with contextlib.suppress(ValueError, KeyError, TypeError, ZeroDivisionError):
            entry = json.loads(line)
            ratio = entry["measured"] / entry["predicted"]
            ratios.setdefault(str(entry["lever"]), []).append(ratio)
    return {
        name: Reliability(
            trials=len(values),
            measured_over_predicted=statistics.median(values),
            lowest=min(values),
            highest=max(values),
        )
        for name, values in ratios.items()
    }
