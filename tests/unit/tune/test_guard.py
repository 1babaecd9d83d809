"""The guard rejects what changes learning, and lets rounding pass."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks.guard_jobs import CORRUPTIONS, JOBS, MEANINGLESS, Job, train  # noqa: E402
from flatout.tune.guard import judge  # noqa: E402
from flatout.tune.guard_runs import GuardRun, is_paired  # noqa: E402
from flatout.tune.trajectory import judge_trajectory  # noqa: E402

BF16 = 2.0**-9
FP32 = 2.0**-23


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def baselines(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str, float], tuple[GuardRun, list[GuardRun]]]:
    """The reference and its three twins, once for each job and roundoff."""
    kept: dict[tuple[str, float], tuple[GuardRun, list[GuardRun]]] = {}

    def of(job: str, roundoff: float) -> tuple[GuardRun, list[GuardRun]]:
        if (job, roundoff) not in kept:
            folder = tmp_path_factory.mktemp("baselines")
            make = JOBS[job]
            reference = train(folder / "reference", make)
            twins = [train(folder / f"{n}", make, perturb=roundoff, which=n) for n in (1, 2, 3)]
            kept[job, roundoff] = (reference, twins)
        return kept[job, roundoff]

    return of


@pytest.mark.parametrize("corruption", CORRUPTIONS)
@pytest.mark.parametrize("job", JOBS)
def test_a_corruption_is_rejected_even_where_bf16_would_be_allowed(
    job: str, corruption: str, baselines: Callable, tmp_path: Path
) -> None:
    if (job, corruption) in MEANINGLESS:
        pytest.skip("there is nothing to spoil")
    reference, twins = baselines(job, BF16)
    spoilt = train(tmp_path, JOBS[job], CORRUPTIONS[corruption])
    verdict = judge(reference, twins, spoilt, roundoff=BF16)
    assert verdict.verdict == "unsafe", verdict


@pytest.mark.parametrize("job", JOBS)
def test_the_job_itself_is_the_same(job: str, baselines: Callable, tmp_path: Path) -> None:
    reference, twins = baselines(job, FP32)
    again = train(tmp_path, JOBS[job])
    verdict = judge(reference, twins, again, roundoff=FP32, exact=True)
    assert (verdict.verdict, verdict.reason) == ("same", "losses are the same, bit for bit")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in (1, 2))])
@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("lever", ["bf16", "fused-optimizer", "channels-last"])
def test_honest_levers_pass(job: str, lever: str, seed: int, tmp_path: Path) -> None:
    if lever == "channels-last" and job != "images":
        pytest.skip("there are no images")
    roundoff = BF16 if lever == "bf16" else FP32
    make: Callable[[int], Job] = JOBS[job]
    reference = train(tmp_path / "reference", make, seed=seed)
    twins = [train(tmp_path / f"{n}", make, seed=seed, perturb=roundoff, which=n) for n in (1, 2, 3)]
    levers = ({"id": lever, "settings": {}},)
    candidate = train(tmp_path / "candidate", make, seed=seed, levers=levers)
    verdict = judge(reference, twins, candidate, roundoff=roundoff)
    assert verdict.verdict == "same", (verdict.reason, verdict.same_state, verdict.trajectory)
    assert verdict.paired


@pytest.mark.parametrize(
    ("level", "verdict"), [(1.05, "weak"), (1.3, "weak"), (4.0, "unsafe"), (-2.0, "unsafe")]
)
def test_runs_that_start_elsewhere_each_time_are_held_against_how_far_they_lie_apart(
    level: float, verdict: str
) -> None:
    """Each run as written has a level of its own, and hardly any noise: the noise is no measure."""

    def run(level: float, number: int) -> GuardRun:
        pairing = {"parameters": [number], "inputs": [[0, number]]}
        return GuardRun(tuple(level - 0.001 * step for step in range(30)), (), pairing)

    reference, *twins = (run(one, number) for number, one in enumerate((1.06, 1.23, 1.22, 0.99)))
    found = judge(reference, twins, run(level, 9), roundoff=2.0**-23)
    assert (found.verdict, found.paired) == (verdict, False)


def run_that_saw(*inputs: int) -> GuardRun:
    """Two inputs an update: data, and what another model made of it."""
    pairing = {"parameters": [7], "inputs": [[number // 2, seen] for number, seen in enumerate(inputs)]}
    return GuardRun((1.0,) * 30, (), pairing)


def test_what_one_model_hands_to_another_need_not_be_the_same_bit_for_bit() -> None:
    reference, twins = run_that_saw(1, 50, 2, 60), [run_that_saw(1, 51, 2, 61), run_that_saw(1, 52, 2, 62)]
    assert is_paired(reference, run_that_saw(1, 53, 2, 63), twins)
    assert not is_paired(reference, run_that_saw(1, 53, 2, 63))
    assert not is_paired(reference, run_that_saw(3, 53, 2, 63), twins)  # other data
    assert not is_paired(reference, run_that_saw(9, 50, 9, 60), [run_that_saw(8, 50, 7, 61)])
    nothing_alike = [run_that_saw(8, 51, 7, 61)]
    assert not is_paired(reference, run_that_saw(1, 50, 2, 60), nothing_alike)


def test_a_twin_without_numbers_explains_nothing() -> None:
    losses = [3.0, 2.0, 1.0, 0.5]
    twin = [3.0, 2.0, math.nan, math.nan]
    _, problem = judge_trajectory(losses, [twin], [3.0, 9.0, 9.0, 9.0], 1e-7)
    assert "losses are" in problem


def run_with(first: float, *, updates: tuple[dict[str, Any], ...] = ()) -> GuardRun:
    pairing = {"parameters": [7], "inputs": [[number, number] for number in range(30)]}
    return GuardRun((first, *(2.0 - 0.01 * step for step in range(29))), updates, pairing)


@pytest.mark.parametrize(("apart", "verdict"), [(0.3, "weak"), (0.001, "same")])
def test_a_script_that_is_not_deterministic_is_held_to_its_level_alone(apart: float, verdict: str) -> None:
    twins = [run_with(2.0 + apart), run_with(2.0), run_with(2.0 - apart)]
    found = judge(run_with(2.0), twins, run_with(2.0 + apart / 2), roundoff=2.0**-9)
    assert found.verdict == verdict
    assert ("not deterministic" in found.reason) == (verdict == "weak")


def update(bias: float, change: float, weight: float = 1.0) -> dict[str, Any]:
    """One update of a weight and of a bias before a norm, by Adam: its steps know no small gradients."""
    return {
        "optimizer": 1,
        "gradients": {"weight": [weight, weight], "bias": [bias, -bias]},
        "before": {"weight": [0.0, 0.0], "bias": [0.0, 0.0]},
        "after": {"weight": [-0.1, -0.1], "bias": [change, -change]},
    }


@pytest.mark.parametrize(("twin_bias", "verdict"), [(-6e-8, "same"), (5e-8, "unsafe")])
def test_where_a_gradient_is_nothing_but_rounding_its_update_says_nothing(
    twin_bias: float, verdict: str
) -> None:
    reference = run_with(2.0, updates=(update(5e-8, 0.001),))
    twins = [run_with(2.0, updates=(update(twin_bias, 0.001),)) for _ in range(3)]
    found = judge(reference, twins, run_with(2.0, updates=(update(4e-8, 0.0045),)), roundoff=2.0**-9)
    assert (found.verdict, "the update of bias" in found.reason) == (verdict, verdict == "unsafe")
