"""Predictions of precision against what was measured on an H200, from baselines of tunings that are kept."""

import json
from pathlib import Path
from typing import Any

import pytest

from flatout.analyze.facts import _REACHED
from flatout.levers.catalogue import BY_ID
from flatout.levers.job import JobFacts

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
RATED = {"fp32": 66.9e12, "tf32": 494.7e12, "bf16": 989.4e12}
KEPT = [
    path
    for path in sorted(RESULTS.glob("*nvidia-h200-tuning-*.json"))
    if any(case in path.name for case in ("-gpt-", "chargpt-gpt2"))
]


def baseline(tuned: dict[str, Any]) -> JobFacts:
    """What the profile of the job as written showed; rated peaks, as where nothing was measured."""
    as_written = tuned["baseline"]
    return JobFacts(
        device="cuda:0",
        capability=(9, 0),
        step_ms=as_written["step_ms"],
        flops_per_step=as_written["mfu"] * RATED["bf16"] * as_written["step_ms"] / 1000,
        peaks={dtype: _REACHED * rate for dtype, rate in RATED.items()},
        habits={"parameter_dtype": "float32"},
    )


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name)
def test_what_precision_gives_is_predicted_within_a_quarter_of_what_is_gained(path: Path) -> None:
    tuned = json.loads(path.read_text())
    first = tuned["ladder"][0]["lever"]
    looked_at = 0
    for trial in tuned["trials"]:
        # On top of TF32, bf16 gives another gain than by itself.
        by_itself = trial["lever"] == first or trial["verdict"] != "kept"
        if trial["lever"] in ("tf32", "bf16") and by_itself and (trial["measured_speedup"] or 1.0) > 1.5:
            predicted = BY_ID[trial["lever"]].predict(baseline(tuned), {})
            assert predicted - 1 == pytest.approx(trial["measured_speedup"] - 1, rel=0.27), trial["lever"]
            looked_at += 1
    assert looked_at


def test_there_are_some() -> None:
    assert len(KEPT) >= 6
