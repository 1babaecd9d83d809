"""Two real ranks: who reads what, what is saved and found again, and what is refused.

`player.py` has the ranks play the scenes of this file, once for all tests.
"""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
# Ranks take their turns on a machine that is busy with other tests.
pytestmark = pytest.mark.timeout(300)

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import (  # noqa: E402
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    WeightedRandomSampler,
)

import flatout  # noqa: E402
from tests.unit.runtime.parallel.trainings import (  # noqa: E402
    Small,
    alone,
    batches,
    loader_of,
    loss_of,
    said_by,
    seeded,
    text,
    together,
)

STRATEGIES = ("ddp", "fsdp", "tensor", "pipeline")
STEPS = 3


class Numbers(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(11))


class OwnBatches(BatchSampler):
    """Somebody's idea of a batch."""


class Fused(nn.Module):
    """Query, key and value in one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).split(16, dim=-1)
        x = x + self.out(torch.softmax(q @ k.transpose(-1, -2), -1) @ v)
        return x + self.down(torch.relu(self.up(x)))


class Mixing(nn.Module):
    """Pairs by their shapes, but what lies between mixes all outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.softmax(self.up(x), -1))


class Backwards(nn.Module):
    """Calls its blocks from the last to the first."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Mixing() for _ in range(4))

    def forward(self, x: Any) -> Any:
        for block in reversed(self.blocks):
            x = block(x)
        return x


def opened(strategy: str, seed: int = 0, **more: Any) -> Any:
    model, optimizer = seeded(seed=seed)
    sample = next(batches(1))[0]
    return flatout.parallel(strategy, model=model, optimizer=optimizer, sample=sample, **more)


def epochs(loader: Any, count: int) -> list[list[int]]:
    """Which samples a loader gives, epoch by epoch."""
    return [[int(one) for batch in loader for one in batch[-1]] for _ in range(count)]


# Each plays on both ranks ----------------------------------------------------------------------------------


def reading(folder: Path) -> dict[str, Any]:
    torch.manual_seed(dist.get_rank())  # ranks that were seeded apart agree all the same
    loader = loader_of()
    found = vars(loader)["sampler"]
    with opened("ddp", loader=loader) as world:
        sampler = world.loader.sampler
        told: dict[str, Any] = {"apart": epochs(world.loader, 3), "says": world.reason}
        torchs = DistributedSampler(text(), seed=sampler.seed, shuffle=True)
        torchs.set_epoch(1)
        told["as torch"] = list(torchs) == told["apart"][1]
        sampler.set_epoch(0)
        told["again"] = epochs(world.loader, 1)[0] == told["apart"][0]
    told["put back"] = loader.sampler is found and loader.batch_sampler.sampler is found
    with opened("tensor", loader=loader_of()) as world:
        told["alike"] = epochs(world.loader, 2)
    with opened("ddp", loader=loader_of(text(15))) as world:
        told["padded"], told["padded says"] = epochs(world.loader, 1)[0], world.reason
    with opened("ddp", loader=loader_of(text(15), drop_last=True, batch_size=1)) as world:
        told["dropped"] = epochs(world.loader, 1)[0]
    with opened("ddp", loader=loader_of(shuffle=False), keep_batch=True) as world:
        told["kept"] = [[int(one) for one in batch[-1]] for batch in world.loader]
    with opened("ddp", loader=loader_of(Numbers(), shuffle=False), shard_iterable=True) as world:
        told["streamed"] = [int(one) for batch in world.loader for one in batch]
    with opened("fsdp", loader=loader_of(num_workers=1, persistent_workers=True)) as world:
        told["by workers"] = epochs(world.loader, 2)
    return told


def saving(folder: Path) -> dict[str, Any]:
    """What each strategy saves, one process loads; what one saves, all load."""
    told: dict[str, Any] = {}
    model, optimizer = seeded()
    alone(model, optimizer, STEPS)
    right = {name: one.clone() for name, one in model.state_dict().items()}
    on = alone(model, optimizer, 2, first=STEPS)
    for strategy in STRATEGIES:
        file = folder / f"{strategy}.pt"
        with opened(strategy) as world:
            together(world, STEPS)
            world.save(file, step=STEPS)
            told[f"{strategy} elsewhere"] = bool(world.state_dict()) == world.is_main
            mine = {name: _whole(one) for name, one in world.bare.state_dict().items() if not one.is_meta}
        plain, its = seeded(seed=1)
        saved = torch.load(file, weights_only=True)
        plain.load_state_dict(saved["model"])
        its.load_state_dict(saved["optimizer"])
        told[f"{strategy} saved"] = [
            list(saved["model"]) == list(right),
            all(torch.equal(saved["model"][name], one) for name, one in mine.items()),
            # Adam follows the rounding of gradients that are next to nothing: single elements may differ.
            all(float((saved["model"][name] - right[name]).abs().mean()) < 1e-4 for name in right),
        ]
        told[f"{strategy} alone"] = alone(plain, its, 2, first=STEPS)
        # Loaded by the next one, in another form.
        after = STRATEGIES[(STRATEGIES.index(strategy) + 1) % len(STRATEGIES)]
        with opened(after, seed=2) as world:
            told[f"{strategy} by {after}"] = [world.load(file), together(world, 2, first=STEPS)]
    return {**told, "right": on}


def _whole(tensor: Any) -> Any:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def checkpoints(folder: Path) -> dict[str, Any]:
    """A checkpoint in the middle of the second epoch, for a world as a whole."""
    told: dict[str, Any] = {}
    with opened("pipeline", loader=loader_of(batch_size=2)) as world:
        told["whole"] = _run(world, folder / "kept", save_at=None)
    with opened("pipeline", loader=loader_of(batch_size=2)) as world:
        _run(world, folder / "kept", save_at=6)
    with opened("pipeline", seed=3, loader=loader_of(batch_size=2)) as world:
        told["resumed"] = _run(world, folder / "kept", save_at=None)
    return told


def _run(world: Any, folder: Path, *, save_at: int | None) -> list[Any]:
    losses: list[Any] = []
    until = save_at or 10
    # As many samples as the stages of a pipeline have agreed on.
    times = 4 if world.strategy == "pipeline" else 1
    with flatout.Checkpointer(folder, every=save_at, training=world, loader=world.loader) as checkpointer:
        step = checkpointer.resume()
        losses.append(step)
        while step < until:
            for drawn, places in checkpointer.loader:
                world.optimizer.zero_grad()
                inputs = drawn.repeat(times, 1)
                loss = world.train_step(inputs, inputs.flip(1), loss_of)
                world.optimizer.step()
                step += 1
                losses.append([places.tolist(), world.mean(loss).item()])
                if save_at:
                    checkpointer.step(step)
                if step >= until:
                    break
    return losses


def refused(folder: Path) -> dict[str, str]:
    model, optimizer = seeded()
    sample = next(batches(1))[0]
    told = {}

    def refuse(name: str, strategy: str, model: Any = None, **more: Any) -> None:
        fresh, its = seeded()
        given = {"model": fresh, "optimizer": its} if model is None else {"model": model}
        told[name] = said_by(lambda: flatout.parallel(strategy, **given, **more))

    refuse("heads", "tensor", Small(heads=1), sample=sample)
    refuse("fused", "tensor", nn.Sequential(*(Fused() for _ in range(2))))
    refuse("mixing", "tensor", nn.Sequential(*(Mixing() for _ in range(2))))
    refuse("mixing in bf16", "tensor", nn.Sequential(*(Mixing() for _ in range(2))).bfloat16())
    refuse("no blocks to divide", "tensor", nn.Linear(4, 4))
    refuse("wrong plan", "tensor", Small(), sample=sample, plan={"attention.query": "column"})
    refuse("no blocks", "pipeline", nn.Linear(4, 4), sample=sample)
    refuse("no sample", "pipeline")
    refuse("backwards", "pipeline", Backwards(), sample=torch.randn(8, 2, 16))
    refuse("uneven", "pipeline", sample=sample[:3])
    refuse("few parts", "pipeline", sample=sample, microbatches=1)
    refuse("processes", "layers")
    refuse(
        "batches",
        "ddp",
        loader=loader_of(batch_sampler=OwnBatches(SequentialSampler(text()), 2, False), **_BARE),
    )
    weighted = WeightedRandomSampler([1.0] * 16, 16)
    refuse("sampler", "ddp", loader=loader_of(sampler=weighted, shuffle=False))
    refuse("stream", "ddp", loader=loader_of(Numbers(), shuffle=False))
    wrong = DistributedSampler(text(), num_replicas=4, rank=3)
    refuse("other ranks", "ddp", loader=loader_of(sampler=wrong, shuffle=False))
    refuse("no loader", "ddp", loader=[1, 2, 3])
    scheduled, its = seeded()
    torch.optim.lr_scheduler.StepLR(its, 1)
    told["scheduler"] = said_by(
        lambda: flatout.parallel("tensor", model=scheduled, optimizer=its, sample=sample)
    )
    told["foreign"] = said_by(lambda: flatout.parallel("fsdp", model=seeded()[0], optimizer=optimizer))
    with flatout.parallel("fsdp", model=model, optimizer=optimizer) as world:
        told["twice"] = said_by(lambda: flatout.parallel("ddp", model=model))
        told["again"] = said_by(lambda: flatout.parallel("ddp", model=world.model))
        told["other state"] = said_by(lambda: world.load_state_dict({"model": {"weight": torch.ones(1)}}))
    with opened("ddp", static_graph=True) as world:
        told["static"] = said_by(lambda: world.accumulating(last=False).__enter__())
        told["micro"] = said_by(lambda: flatout.microbatch(lambda part: part, sample, world.model))
    with opened("pipeline") as world:
        told["other shape"] = said_by(lambda: world.train_step(sample[:4], sample[:4], loss_of))
    return told


_BARE: dict[str, Any] = {"batch_size": 1, "shuffle": None}


def partly(folder: Path) -> dict[str, Any]:
    """Layers that cannot be divided for certain stay whole, where that is said to be fine."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Fused() for _ in range(2)))
    x = torch.randn(2, 5, 16)
    right = model(x).detach()
    with flatout.parallel("tensor", model=model, partly=True) as world:
        return {"alike": torch.allclose(world.model(x), right, rtol=1e-4, atol=1e-5), "says": world.reason}


def a_rank_raises(folder: Path) -> dict[str, str]:
    """In the middle of a training; the other one waits at a barrier."""

    def train() -> None:
        with opened("ddp") as world:
            if world.rank == 1:
                raise ValueError("a planted mistake")
            world.barrier()

    return {"said": said_by(train)}


def a_rank_does_not_come(folder: Path) -> dict[str, str]:
    with opened("ddp") as world:
        said = said_by(lambda: world.barrier(timeout_s=0.2)) if world.rank == 0 else ""
        dist.barrier()
        if world.rank == 1:  # too late, but there
            world.barrier()
    return {"said": said}


SCENES = (reading, saving, checkpoints, refused, partly, a_rank_raises, a_rank_does_not_come)


# What came of it -------------------------------------------------------------------------------------------


@pytest.mark.full
def test_an_epoch_of_all_ranks_is_each_sample_once_in_another_order_each_time(two: list[Any]) -> None:
    first, second = (told["reading"] for told in two)
    for one, other in zip(first["apart"], second["apart"], strict=True):
        assert sorted(one + other) == list(range(16))
    assert len({tuple(epoch) for epoch in first["apart"]}) == 3
    assert first["as torch"]
    assert first["again"], "set_epoch is heard"
    assert first["put back"]
    assert "each sample once an epoch" in first["says"]


def test_ranks_that_share_a_batch_read_the_same(two: list[Any]) -> None:
    first, second = (told["reading"]["alike"] for told in two)
    assert first == second
    assert first[0] != first[1]
    assert sorted(first[0]) == list(range(16))


def test_what_does_not_divide_comes_twice_or_is_left_out_and_it_is_said(two: list[Any]) -> None:
    first, second = (told["reading"] for told in two)
    both = first["padded"] + second["padded"]
    assert (len(both), sorted({*both})) == (16, list(range(15)))
    assert "1 samples come twice an epoch" in first["padded says"]
    assert len({*first["dropped"], *second["dropped"]}) == 14


def test_a_batch_that_is_kept_is_divided(two: list[Any]) -> None:
    first, second = (told["reading"]["kept"] for told in two)
    together = [sorted(one + other) for one, other in zip(first, second, strict=True)]
    assert together == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]


def test_a_stream_is_divided_when_asked_and_workers_count_epochs_too(two: list[Any]) -> None:
    first, second = (told["reading"] for told in two)
    assert (first["streamed"], second["streamed"]) == ([0, 2, 4, 6, 8], [1, 3, 5, 7, 9])
    assert first["by workers"][0] != first["by workers"][1]
    assert sorted(first["by workers"][1] + second["by workers"][1]) == list(range(16))


def test_one_process_goes_on_with_what_ranks_saved(two: list[Any]) -> None:
    told = two[0]["saving"]
    for strategy in STRATEGIES:
        assert told[f"{strategy} saved"] == [True, True, True]
        assert told[f"{strategy} elsewhere"]
        assert told[f"{strategy} alone"] == pytest.approx(told["right"], rel=1e-4)


def test_another_strategy_goes_on_with_what_one_saved(two: list[Any]) -> None:
    for one in two:
        told = one["saving"]
        crossed = [value for name, value in told.items() if " by " in name]
        assert len(crossed) == len(STRATEGIES)
        for beside, losses in crossed:
            assert beside == {"step": STEPS}
            assert losses == pytest.approx(told["right"], rel=1e-4)


def test_a_checkpoint_of_a_world_goes_on_in_the_middle_of_an_epoch(two: list[Any]) -> None:
    for told in two:
        whole, resumed = (told["checkpoints"][which] for which in ("whole", "resumed"))
        assert (whole[0], resumed[0]) == (0, 6)
        assert [one[0] for one in resumed[1:]] == [one[0] for one in whole[7:]], "the same samples"
        assert [one[1] for one in resumed[1:]] == pytest.approx([one[1] for one in whole[7:]], rel=1e-4)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("heads", "attention.heads=1 and 2 ranks"),
        ("fused", "qkv gives 48, and out reads 16: it holds 3 things in one"),
        ("mixing", "computes something else once up, down are divided"),
        ("mixing in bf16", "computes something else once up, down are divided"),
        ("no blocks to divide", "no blocks repeat"),
        ("wrong plan", "a plan with 'attention.query'"),
        ("no blocks", "Linear: 0 repeated blocks, and 2 ranks"),
        ("no sample", "a pipeline without a sample"),
        ("backwards", "in the order [3, 2, 1, 0]"),
        ("uneven", "a batch of 3 samples, in 4 parts"),
        ("few parts", "microbatches=1 for 2 stages"),
        ("processes", "strategy='layers' with 2 processes"),
        ("batches", "a batch sampler of its own (OwnBatches)"),
        ("sampler", "a sampler of its own (WeightedRandomSampler)"),
        ("stream", "shard_iterable=True"),
        ("other ranks", "a DistributedSampler for rank 3 of 4"),
        ("no loader", "a loader that is a list"),
        ("scheduler", "a learning-rate scheduler holds already"),
        ("foreign", "parameters that are not this model's"),
        ("twice", "spread over ranks or devices already"),
        ("again", "spread over ranks or devices already"),
        ("other state", "names missing"),
        ("static", "accumulating with static_graph=True"),
        ("micro", "static_graph=True"),
        ("other shape", "drop_last=True"),
    ],
)
def test_wrong_use_is_refused_in_words_on_all_ranks(two: list[Any], what: str, words: str) -> None:
    for told in two:
        assert told["refused"][what].startswith("CallerMistake: "), told["refused"][what]
        assert words in told["refused"][what]


def test_what_cannot_be_divided_for_certain_stays_whole_when_asked(two: list[Any]) -> None:
    for told in two:
        assert told["partly"]["alike"]
        assert told["partly"]["says"].startswith("up, down of 2 blocks are divided")


def test_a_rank_that_raises_is_named_by_the_others(two: list[Any]) -> None:
    waiting, culprit = (told["a_rank_raises"]["said"] for told in two)
    assert culprit == "ValueError: a planted mistake"
    assert waiting.startswith("JobFailed: rank 1 failed: ValueError: a planted mistake")


def test_a_rank_that_does_not_come_is_named_in_time(two: list[Any]) -> None:
    assert "rank 1 did not come to the barrier within 0.2 s" in two[0]["a_rank_does_not_come"]["said"]
