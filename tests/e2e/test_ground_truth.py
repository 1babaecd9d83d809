"""Costs that were planted in a script, found where they are and as large as they are.

No assertion here is on a time as such: a busy machine makes everything longer, for the watcher and for the
watched alike. The script times each part itself, in the same run, around the very calls that Flatout times
and inside them. Flatout's reading of a call must lie between the two, to the nanosecond and whatever the
machine does. That it lies close to the outer one is asked of the median step, for now and then a process is
put to sleep between two clock readings that have nothing else in between.
"""

import dataclasses
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flatout.analyze.profile import Peaks, build_profile
from flatout.analyze.steps import RankSteps, read_ranks
from flatout.records.profile import Profile
from flatout.records.trial import Shield, Trial
from tests.e2e.test_zoo import watched

SCRIPT = Path(__file__).parent / "ground_truth.py"
STEPS = 40
PARTS = ("loader", "copy", "forward", "backward", "clipping", "optimizer")
WORDS = {"loader": "input", "copy": "copies"}


@dataclasses.dataclass(frozen=True)
class Case:
    """One way of running the script, and what at least its loader makes the loop wait, in milliseconds."""

    name: str
    arguments: tuple[str, ...]
    planted_loader_ms: float


CASES = (
    Case("loop", ("--evaluate", "before-batch"), planted_loader_ms=40),
    # A batch takes longer than the rest of a step: what the loop waits is what remains of it.
    Case("worker", ("--workers", "1", "--load-ms", "120", "--evaluate", "after-batch"), planted_loader_ms=0),
    Case("no-eval-call", ("--evaluate", "after-batch", "--forget-eval"), planted_loader_ms=40),
)


@dataclasses.dataclass(frozen=True)
class Seen:
    """The same run twice: as Flatout saw it, and as the script did."""

    case: Case
    rank: RankSteps
    profile: Profile
    whole: dict[str, Any]

    def true_ms(self, part: str, *, since: int = 0) -> list[float]:
        """What the script measured around the calls of a part, by step."""
        return [step["outer"].get(part, 0) / 1e6 for step in self.whole["steps"][since:]]

    def found_ms(self, part: str) -> list[float]:
        """What Flatout measured of them."""
        return [step[f"{part}_ns"] / 1e6 for step in self.rank.steps]

    @property
    def steady_from(self) -> int:
        """The place of the first step that the profile stands on."""
        return self.profile.steady_from - 1

    @property
    def evaluated(self) -> list[int]:
        """The places of the steps with an evaluation in them."""
        return [place for place, step in enumerate(self.rank.steps) if step["evaluations"]]


@pytest.fixture(
    scope="module",
    params=[*CASES[:2], *(pytest.param(case, marks=pytest.mark.full) for case in CASES[2:])],
    ids=lambda case: case.name,
)
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    case: Case = request.param
    place = tmp_path_factory.mktemp(case.name)
    done, ranks = watched(place, [sys.executable, str(SCRIPT), "--steps", str(STEPS), *case.arguments])
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    whole = json.loads(done.stdout.splitlines()[-1])
    [rank] = read_ranks(ranks.parent)
    assert rank.about["failed_taps"] == {}
    trial = Trial(
        name="planted",
        folder=str(ranks.parent),
        command=("python", "ground_truth.py"),
        outcome="ended",
        updates=len(rank.steps),
        ranks=1,
        took_s=1.0,
        shield=Shield(kind="none"),
    )
    return Seen(case, rank, build_profile("planted", trial, ranks.parent, Peaks()), whole)


def agree(found: float, true: float) -> bool:
    """Within 5 % or a millisecond."""
    return abs(found - true) <= max(1.0, 0.05 * true)


def mostly_agree(found: Sequence[float], true: Sequence[float]) -> bool:
    """So do most of the readings."""
    return sum(map(agree, found, true)) > len(true) / 2


def median_agrees(found: Sequence[float], true: Sequence[float]) -> bool:
    """The medians are as close as the readings: where k of them differ, the median may move by k places."""
    moved = len(true) - sum(map(agree, found, true))
    ordered, last = sorted(true), len(true) - 1
    low, high = ordered[max(0, last // 2 - moved)], ordered[min(last, (last + 1) // 2 + moved)]
    median = statistics.median(found)
    return low <= median <= high or agree(median, low) or agree(median, high)


def test_every_update_is_a_step(seen: Seen) -> None:
    assert [step["update"] for step in seen.rank.steps] == list(range(1, STEPS + 1))
    assert len(seen.whole["steps"]) == STEPS
    assert {step["samples"] for step in seen.rank.steps} == {seen.whole["samples"]}


@pytest.mark.parametrize("part", [*PARTS, "evaluation"])
def test_each_part_of_each_step_lies_between_what_the_script_measured_inside_and_around(
    seen: Seen, part: str
) -> None:
    for step, truth in zip(seen.rank.steps, seen.whole["steps"], strict=True):
        assert truth["inner"].get(part, 0) <= step[f"{part}_ns"] <= truth["outer"].get(part, 0)


@pytest.mark.parametrize("part", PARTS)
def test_each_part_costs_what_the_script_measured(seen: Seen, part: str) -> None:
    found, true = seen.found_ms(part), seen.true_ms(part)
    assert mostly_agree(found, true)
    assert median_agrees(found, true)


def test_what_was_planted_is_in_the_part_where_it_was_planted(seen: Seen) -> None:
    # Sleeping and burning take at least as long as asked, on any machine.
    planted = {"forward": 20, "backward": 10, "optimizer": 15, "loader": seen.case.planted_loader_ms}
    for part, least in planted.items():
        assert min(seen.found_ms(part)) >= least, part
    assert min(seen.found_ms("copy")) > 0
    assert min(seen.found_ms("clipping")) > 0


def test_evaluation_is_measured_and_belongs_to_no_step(seen: Seen) -> None:
    assert seen.evaluated == [5, 15, 25, 35]
    assert {seen.rank.steps[place]["evaluations"] for place in seen.evaluated} == {3}
    assert {step["forwards"] for step in seen.rank.steps} == {1}
    found = [seen.found_ms("evaluation")[place] for place in seen.evaluated]
    true = [seen.true_ms("evaluation")[place] for place in seen.evaluated]
    # Each lies between the script's two readings (above); one of the four without an interruption is enough.
    assert any(map(agree, found, true))
    assert min(found) >= 3 * (8 + 6 + 5)
    assert sum(seen.found_ms("evaluation")) == pytest.approx(sum(found))  # no other step has any
    assert seen.profile.evaluations == 4
    assert seen.profile.evaluation_ms == pytest.approx(statistics.fmean(found))
    for step, wall in zip(seen.rank.steps, seen.rank.wall_ms(), strict=True):
        assert wall == pytest.approx((step["ended_ns"] - step["started_ns"] - step["evaluation_ns"]) / 1e6)


def test_step_times_are_those_of_the_script_without_its_evaluations(seen: Seen) -> None:
    step, true = seen.profile.step_ms, seen.true_ms("step", since=seen.steady_from)
    assert step is not None
    assert step.clock == "host"
    assert len(true) == seen.profile.steps
    found = seen.rank.wall_ms()[seen.steady_from :]
    assert mostly_agree(found, true)
    assert median_agrees(found, true)
    assert step.p50 == statistics.median(found)
    assert step.mean == pytest.approx(statistics.fmean(found))
    assert agree(step.mean, statistics.fmean(true))
    assert step.low <= step.p50 <= step.high
    rate = seen.whole["samples"] / statistics.fmean(true) * 1000
    assert seen.profile.samples_per_s == pytest.approx(rate, rel=0.05)


def test_the_tables_of_the_profile_are_the_means_of_its_steps_and_sum_to_the_whole(seen: Seen) -> None:
    host = {share.part: share.ms for share in seen.profile.host}
    waterfall = {share.part: share.ms for share in seen.profile.waterfall}
    found = {part: statistics.fmean(seen.found_ms(part)[seen.steady_from :]) for part in PARTS}
    assert {WORDS.get(part, part): ms for part, ms in found.items()} == pytest.approx(
        {part: ms for part, ms in host.items() if part != "other"}
    )
    compute = found["copy"] + found["forward"] + found["backward"] + found["clipping"]
    assert waterfall == pytest.approx(
        {
            "input_wait": found["loader"],
            "optimizer": found["optimizer"],
            "host_compute": compute,
            "unattributed": host["other"],
        }
    )
    for table in (seen.profile.host, seen.profile.waterfall):
        assert sum(share.share for share in table) == pytest.approx(1)
        assert sum(share.ms for share in table) == pytest.approx(seen.profile.step_ms.mean)  # type: ignore[union-attr]
        assert min(share.ms for share in table) >= 0


def test_copies_are_counted_with_their_bytes(seen: Seen) -> None:
    assert {step["copies"] for step in seen.rank.steps} == {2}
    assert {step["copy_bytes"] for step in seen.rank.steps} == {seen.whole["copied_bytes"]}


def test_the_loader_that_trains_is_described_with_its_wait(seen: Seen) -> None:
    [loader] = [one for one in seen.profile.loaders if one.settings["batch_size"] == seen.whole["samples"]]
    assert loader.batches == STEPS
    # Starting an iterator is no batch, and costs much where it starts workers.
    assert loader.wait_ms <= statistics.fmean(seen.true_ms("loader"))
    if seen.case.name == "worker":
        # What a batch costs is what was planted, wherever the loop meets it.
        assert loader.load_ms is not None
        assert loader.load_ms >= 120
        assert loader.workers_busy_share is not None
        assert 0 < loader.workers_busy_share <= 1
    else:
        # The evaluation's loader works in the same process: what one of them costs cannot be told.
        assert loader.load_ms is None
        assert "several loaders" in loader.unknown["load_ms"]
