"""Two and four real ranks learn what one process learns, by every strategy.

`player.py` has the ranks play the scenes of this file, once for all tests.
"""

import copy
import math
import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
# Ranks take their turns on a machine that is busy with other tests.
pytestmark = pytest.mark.timeout(300)

import torch.distributed as dist  # noqa: E402

import flatout  # noqa: E402
from tests.unit.runtime.parallel.trainings import (  # noqa: E402
    alone,
    batches,
    loss_of,
    seeded,
    together,
)

STEPS = 4
CLIP = 0.5


def trained(
    strategy: str, *, steps: int = STEPS, parts: int = 1, clip: float | None = CLIP, **options: Any
) -> Any:
    # Ranks that were seeded apart train the first one's model.
    model, optimizer = seeded(seed=dist.get_rank() if dist.is_initialized() else 0)
    sample = next(batches(1))[0]
    sample = sample[: len(sample) // parts]
    more = {"sample": sample} if strategy in ("tensor", "pipeline") else {}
    with flatout.parallel(strategy, model=model, optimizer=optimizer, **more, **options) as world:
        return together(world, steps, parts=parts, clip=clip)


# Each plays on all ranks -----------------------------------------------------------------------------------


def joining(folder: Path) -> dict[str, Any]:
    """No process group yet: it is made, and taken down."""
    model, optimizer = seeded()
    before = dist.is_initialized()
    with flatout.parallel("ddp", model=model, optimizer=optimizer) as world:
        inside = [world.rank, world.count, world.is_main, str(dist.get_backend()), str(world.device)]
        losses = together(world, 1)
    told = {"before": before, "inside": inside, "after": dist.is_initialized(), "losses": losses}
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", **_place())
    return told


def _place() -> dict[str, int]:
    return {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}


def one_process(folder: Path) -> dict[str, Any]:
    model, optimizer = seeded()
    plain, its = seeded()
    return {"clipped": alone(model, optimizer, STEPS, clip=CLIP), "plain": alone(plain, its, STEPS)}


def every_strategy(folder: Path) -> dict[str, Any]:
    return {
        "ddp": trained("ddp"),
        "ddp in parts": trained("ddp", parts=2),
        "ddp with a static graph": trained("ddp", static_graph=True),
        "fsdp": trained("fsdp"),
        "tensor": trained("tensor"),
        "pipeline": trained("pipeline", microbatches=4),
        "pipeline in parts": trained("pipeline", microbatches=4, parts=2),
    }


def fsdp_in_other_ways(folder: Path) -> dict[str, Any]:
    return {
        "in parts": trained("fsdp", parts=2),
        "computed again": trained("fsdp", checkpoint=True),
        "half of it computed again": trained("ddp", checkpoint=0.5),
        "kept between": trained("fsdp", reshard=False),
        "on the host": trained("fsdp", offload=True),
        "tensor, computed again": trained("tensor", checkpoint=True),
        "by gpipe": trained("pipeline", schedule="gpipe", microbatches=2),
    }


def rounded(folder: Path) -> dict[str, Any]:
    return {"compressed": trained("ddp", compress="bf16"), "bf16": trained("fsdp", precision="bf16")}


def gradients_of_parts(folder: Path) -> dict[str, Any]:
    """Whether they travel: equal on all ranks after the last part alone."""
    told = {}
    for strategy in ("ddp", "fsdp"):
        model, _ = seeded()
        inputs, targets = next(batches(1))
        mine = slice(dist.get_rank(), None, dist.get_world_size())
        with flatout.parallel(strategy, model=model) as world:
            norms = []
            for last in (False, True):
                with world.accumulating(last=last):
                    loss_of(world.model(inputs[mine]), targets[mine]).backward()
                gradient = world.bare.norm.weight.grad
                norms.append(None if gradient is None else _norm(gradient))
        told[strategy] = norms
    return told


def _norm(gradient: Any) -> float:
    whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return float(whole.norm())


def in_micro_batches(folder: Path) -> dict[str, Any]:
    model, _ = seeded()
    twin = copy.deepcopy(model)
    inputs, targets = next(batches(1))
    loss_of(twin(inputs), targets).backward()
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    with flatout.parallel("ddp", model=model) as world:
        step = lambda part: loss_of(world.model(part[0]), part[1])  # noqa: E731
        done = flatout.microbatch(step, (inputs[mine], targets[mine]), world.model, size=1)
    alike = [
        torch.allclose(one.grad, other.grad, rtol=1e-4, atol=1e-6)
        for one, other in zip(model.parameters(), twin.parameters(), strict=True)
    ]
    return {"parts": done.parts, "alike": all(alike)}


def held(folder: Path) -> dict[str, Any]:
    """How much of the parameters each rank has."""
    told = {}
    for strategy in ("fsdp", "tensor", "pipeline"):
        model, optimizer = seeded()
        whole = sum(one.numel() for one in model.parameters())
        sample = next(batches(1))[0]
        with flatout.parallel(strategy, model=model, optimizer=optimizer, sample=sample) as world:
            mine = [one for group in world.optimizer.param_groups for one in group["params"]]
            local = [one.to_local() if hasattr(one, "to_local") else one for one in mine]
            told[strategy] = sum(one.numel() for one in local) / whole
            told[f"{strategy} says"] = world.reason
    return told


CORE = (joining, one_process, every_strategy)
SCENES = (*CORE, fsdp_in_other_ways, rounded, gradients_of_parts, in_micro_batches, held)


# What came of it -------------------------------------------------------------------------------------------


def test_ranks_find_each_other_and_leave_nothing_behind(two: list[dict[str, Any]]) -> None:
    for rank, told in enumerate(two):
        found = told["joining"]
        assert (found["before"], found["after"]) == (False, False)
        assert found["inside"] == [rank, 2, rank == 0, "gloo", "cpu"]
        assert found["losses"] == pytest.approx(told["one_process"]["plain"][:1], rel=1e-5)


def test_two_ranks_learn_what_one_process_learns(two: list[dict[str, Any]]) -> None:
    for told in two:
        for losses in told["every_strategy"].values():
            assert losses == pytest.approx(told["one_process"]["clipped"], rel=1e-4)


@pytest.mark.full
def test_four_ranks_learn_what_one_process_learns(four: list[dict[str, Any]]) -> None:
    for told in four:
        for losses in told["every_strategy"].values():
            assert losses == pytest.approx(told["one_process"]["clipped"], rel=1e-4)


def test_clipping_by_all_ranks_is_not_without_effect(two: list[dict[str, Any]]) -> None:
    told = two[0]["one_process"]
    assert told["clipped"] != pytest.approx(told["plain"], rel=1e-4)


def test_options_that_change_no_mathematics_change_no_losses(two: list[dict[str, Any]]) -> None:
    for told in two:
        for losses in told["fsdp_in_other_ways"].values():
            assert losses == pytest.approx(told["one_process"]["clipped"], rel=1e-4)


def test_bf16_rounds_and_no_more_than_that(two: list[dict[str, Any]]) -> None:
    exact = two[0]["one_process"]["clipped"]
    for losses in two[0]["rounded"].values():
        assert losses == pytest.approx(exact, rel=1e-2)
        assert losses != pytest.approx(exact, rel=1e-7)


def test_gradients_travel_with_the_last_part_alone(two: list[dict[str, Any]]) -> None:
    first, second = (told["gradients_of_parts"] for told in two)
    assert first["ddp"][0] != pytest.approx(second["ddp"][0], rel=1e-4)
    assert first["ddp"][1] == pytest.approx(second["ddp"][1], rel=1e-5)
    # FSDP keeps them to itself until then.
    assert first["fsdp"][0] is None
    assert first["fsdp"][1] == pytest.approx(first["ddp"][1], rel=1e-4)


def test_micro_batches_go_through_a_wrapped_model(two: list[dict[str, Any]]) -> None:
    assert [told["in_micro_batches"] for told in two] == [{"parts": 4, "alike": True}] * 2


def test_each_rank_holds_its_part_and_says_so(two: list[dict[str, Any]]) -> None:
    shares = [told["held"] for told in two]
    assert sum(one["fsdp"] for one in shares) == pytest.approx(1.0)
    assert all(0.5 < one["tensor"] < 0.6 for one in shares)  # norms and embeddings are whole
    assert 1.0 < sum(one["pipeline"] for one in shares) < 1.1  # the tied weight is on both
    assert math.isclose(shares[0]["fsdp"], 0.5, rel_tol=0.05)
    assert "attention.heads divided, too" in shares[0]["tensor says"]
    assert "(2/2)" in shares[0]["pipeline says"]
