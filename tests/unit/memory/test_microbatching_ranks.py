"""Recovery across two real ranks: they split alike, reduce once, and leave together.

The scenes are played by two processes of this very file, once for all tests: each starts a torch of its own.
"""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import flatout  # noqa: E402
from flatout.records.errors import FlatoutError  # noqa: E402

RANKS = 2
# They need a few seconds; whoever waits for the other in vain would wait for half an hour.
IN_TIME_S = 240


class RunsOut(torch.autograd.Function):
    """Fails on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise torch.OutOfMemoryError("planted")


class Scene:
    """A model that all ranks have alike, a batch of one's own, and a step that holds so many samples."""

    def __init__(self, rank: int, *, samples: int = 16, model: Any = None) -> None:
        torch.manual_seed(7)
        self.rank = rank
        self.model = model or nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
        torch.manual_seed(100 + rank)
        self.batch = torch.randn(samples, 4), torch.randn(samples, 2)
        self.calls: list[int] = []

    def step(self, model: Any, most: int = 99, where: str = "backward") -> Any:
        def step(part: Any) -> Any:
            x, y = part
            self.calls.append(len(x))
            if len(x) > most and where == "before":
                raise torch.OutOfMemoryError("planted")
            out = model(x)
            if len(x) > most:
                out = RunsOut.apply(out)
            return (out - y).square().mean()

        return step

    def gradients(self) -> Any:
        return torch.cat([one.grad.reshape(-1) for one in self.model.parameters() if one.grad is not None])

    def whole(self) -> Any:
        """This rank's gradients without a split."""
        self.step(self.model)(self.batch).backward()
        found = self.gradients()
        self.model.zero_grad()
        self.calls.clear()
        return found


def mean_of(tensor: Any) -> Any:
    total = tensor.clone()
    dist.all_reduce(total)
    return total / RANKS


def alike(one: Any, other: Any) -> bool:
    return bool(torch.allclose(one, other, rtol=1e-5, atol=1e-6))


def failure_of(call: Any) -> list[str]:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - it is what the test is about
        return [type(error).__name__, str(error)]
    return []


# Each plays on both ranks ----------------------------------------------------------------------------------


def one_rank_runs_out(rank: int) -> dict[str, Any]:
    scene = Scene(rank)
    right = scene.whole()
    done = flatout.microbatch(scene.step(scene.model, 4 if rank else 99), scene.batch, scene.model)
    return {
        "parts": done.parts,
        "size": done.size,
        "ran_out": done.ran_out,
        "right": alike(scene.gradients(), right),
    }


def batches_of_other_sizes(rank: int) -> dict[str, Any]:
    scene = Scene(rank, samples=16 if rank else 6)
    right = scene.whole()
    done = flatout.microbatch(scene.step(scene.model, 8 if rank else 99), scene.batch, scene.model)
    return {"parts": done.parts, "split": done.had_to_split, "right": alike(scene.gradients(), right)}


def replicas(rank: int) -> dict[str, Any]:
    """One rank runs out in the middle of its backward pass, where DDP would be reducing."""
    scene = Scene(rank)
    right = mean_of(scene.whole())
    wrapped = DistributedDataParallel(scene.model)
    reductions: list[int] = []
    plain = dist.all_reduce

    def counted(tensor: Any, *more: Any, **options: Any) -> Any:
        if options.get("group") is wrapped.process_group:
            reductions.append(tensor.numel())
        return plain(tensor, *more, **options)

    dist.all_reduce = counted
    try:
        done = flatout.microbatch(scene.step(wrapped, 99 if rank else 4), scene.batch, wrapped)
    finally:
        dist.all_reduce = plain
    found = scene.gradients()
    # As DDP itself goes on.
    scene.model.zero_grad()
    scene.step(wrapped)(scene.batch).backward()
    return {
        "parts": done.parts,
        "right": alike(found, right),
        "reductions": reductions,
        "afterwards": alike(scene.gradients(), right),
    }


def no_room_to_average(rank: int) -> dict[str, Any]:
    """One rank gets through its whole batch, but has nothing left for what averaging needs."""
    scene = Scene(rank)
    right = mean_of(scene.whole())
    wrapped = DistributedDataParallel(scene.model)
    plain, asked = torch.empty, []

    def full(*size: Any, **options: Any) -> Any:
        if scene.calls == [16]:
            asked.append(size)
            raise torch.OutOfMemoryError("planted")
        return plain(*size, **options)

    torch.empty = full if rank else plain
    try:
        done = flatout.microbatch(scene.step(wrapped), scene.batch, wrapped)
    finally:
        torch.empty = plain
    return {"parts": done.parts, "asked": len(asked), "right": alike(scene.gradients(), right)}


def replicas_with_buffers(rank: int) -> dict[str, Any]:
    """DDP hands out buffers in forward: a rank that runs out before it would leave the other waiting."""
    scene = Scene(rank, model=nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
    wrapped = DistributedDataParallel(scene.model)
    step = scene.step(wrapped, 8 if rank else 99, where="before")
    scene.model[1].running_mean.fill_(1000.0 * rank)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sizes = [flatout.microbatch(step, scene.batch, wrapped).size for _ in range(2)]
    tracked = scene.model[1].num_batches_tracked.item()
    handed_out = scene.model[1].running_mean.abs().max().item() < 10
    wrapped.eval()(scene.batch[0])
    statistics = scene.model[1].running_mean
    return {
        "sizes": sizes,
        "tracked": tracked,
        "handed_out": handed_out,
        "sync": wrapped.require_forward_param_sync,
        "mean": statistics.tolist(),
    }


def accumulating(rank: int) -> dict[str, Any]:
    """Within `no_sync` gradients stay at home; the next call adds those of all ranks to what is there."""
    scene = Scene(rank)
    own = scene.whole()
    wrapped = DistributedDataParallel(scene.model)
    step = scene.step(wrapped, 8 if rank else 99)
    with wrapped.no_sync():
        flatout.microbatch(step, scene.batch, wrapped)
    at_home = alike(scene.gradients(), own)
    scene.model.zero_grad()
    for _ in range(2):
        flatout.microbatch(step, scene.batch, wrapped)
    return {"at_home": at_home, "twice": alike(scene.gradients(), 2 * mean_of(own))}


def used_on_one_rank_only(rank: int) -> dict[str, Any]:
    model = nn.ModuleDict({"both": nn.Linear(4, 2), "one": nn.Linear(4, 2), "none": nn.Linear(4, 2)})

    class Choosing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Any) -> Any:
            return model["both"](x) + (model["one"](x) if rank else 0)

    scene = Scene(rank, model=Choosing())
    wrapped = DistributedDataParallel(scene.model, find_unused_parameters=True)
    flatout.microbatch(scene.step(wrapped, 8 if rank else 99), scene.batch, wrapped)
    found = {name: one.grad for name, one in model.named_parameters()}
    return {
        "unused": found["none.weight"] is None,
        "alike": alike(scene.gradients(), mean_of(scene.gradients())),
        "one": found["one.weight"] is not None and bool(found["one.weight"].any()),
    }


def one_rank_fails(rank: int) -> dict[str, Any]:
    scene = Scene(rank)
    wrapped = DistributedDataParallel(scene.model)

    def step(part: Any) -> Any:
        if rank == 0:
            raise ValueError("planted elsewhere")
        return scene.step(wrapped)(part)

    failure = failure_of(lambda: flatout.microbatch(step, scene.batch, wrapped))
    gradients = [one.grad is None for one in scene.model.parameters()]
    right = mean_of(scene.whole())
    flatout.microbatch(scene.step(wrapped, 8), scene.batch, wrapped)
    return {"failure": failure, "none": all(gradients), "goes_on": alike(scene.gradients(), right)}


def a_batch_that_cannot_be_split(rank: int) -> dict[str, Any]:
    scene = Scene(rank)
    batch = scene.batch if rank else "text"
    return {"failure": failure_of(lambda: flatout.microbatch(scene.step(scene.model), batch, scene.model))}


def nothing_fits(rank: int) -> dict[str, Any]:
    scene = Scene(rank)
    step = scene.step(scene.model, 0 if rank else 99)
    failure = failure_of(lambda: flatout.microbatch(step, scene.batch, scene.model))
    return {"failure": failure, "calls": scene.calls[:5] if rank else []}


def growing_back(rank: int) -> dict[str, Any]:
    scene = Scene(rank, samples=16 if rank else 12)
    most = {"now": 4 if rank else 99}

    def tight(part: Any) -> Any:
        return scene.step(scene.model, most["now"])(part)

    step = flatout.Microbatch(tight, scene.model, grow_after=2)
    sizes = []
    for number in range(9):
        if number == 4:
            most["now"] = 99
        step(scene.batch)
        sizes.append(step.size)
    return {"sizes": sizes}


def a_group_of_ones_own(rank: int) -> dict[str, Any]:
    groups = [dist.new_group([one]) for one in range(RANKS)]
    scene = Scene(rank)
    if rank == 0:
        return {"parts": 0}
    done = flatout.microbatch(scene.step(scene.model, 4), scene.batch, scene.model, group=groups[rank])
    return {"parts": done.parts}


def a_hook_of_ones_own(rank: int) -> dict[str, Any]:
    scene = Scene(rank)
    wrapped = DistributedDataParallel(scene.model)
    wrapped.register_comm_hook(
        None, lambda _state, bucket: torch.futures.Future().set_result(bucket.buffer())
    )
    return {"failure": failure_of(lambda: flatout.microbatch(scene.step(wrapped), scene.batch, wrapped))}


def models_that_strand(rank: int) -> dict[str, Any]:
    """Refused before any rank waits for another."""
    from torch.distributed.fsdp import fully_shard

    scene = Scene(rank)
    inside = nn.Sequential(DistributedDataParallel(scene.model))
    nested = failure_of(lambda: flatout.Microbatch(scene.step(inside), inside))
    sharded = nn.Linear(4, 2)
    fully_shard(sharded, mesh=torch.distributed.init_device_mesh("cpu", (RANKS,)))
    synced = nn.Sequential(nn.Linear(4, 2), nn.SyncBatchNorm(2))
    return {
        "nested": nested,
        "synced": failure_of(lambda: flatout.Microbatch(scene.step(synced), synced)),
        "evaluating": failure_of(lambda: flatout.Microbatch(scene.step(synced), synced.eval())),
        "sharded": failure_of(lambda: flatout.Microbatch(scene.step(sharded), sharded)),
    }


def searching(rank: int) -> dict[str, Any]:
    scene = Scene(rank)
    wrapped = DistributedDataParallel(scene.model)
    before = scene.model[0].weight.clone()
    found = flatout.find_batch_size(
        scene.step(wrapped, 20 if rank else 99),
        lambda size: (torch.ones(size, 4), torch.ones(size, 2)),
        wrapped,
        optimizer=torch.optim.SGD(scene.model.parameters(), lr=0.1),
        most=64,
    )
    return {
        "found": [found.size, [list(one) for one in found.tried]],
        "restored": torch.equal(before, scene.model[0].weight),
    }


SCENES = (
    *(one_rank_runs_out, batches_of_other_sizes, replicas, replicas_with_buffers, accumulating),
    *(used_on_one_rank_only, one_rank_fails, a_batch_that_cannot_be_split, nothing_fits, growing_back),
    *(no_room_to_average, a_group_of_ones_own, a_hook_of_ones_own, models_that_strand, searching),
)


def play(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    told = {scene.__name__: scene(rank) for scene in SCENES}
    (folder / f"{rank}.json").write_text(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()


# What came of it -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    started = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else None,
        )
        for rank in range(RANKS)
    ]
    said = []
    try:
        for process in started:
            said.append(process.communicate(timeout=IN_TIME_S)[0])  # noqa: PERF401 - what came so far helps
    finally:
        for process in started:
            process.kill()
            process.communicate()
    files = [folder / f"{rank}.json" for rank in range(RANKS)]
    assert all(file.exists() for file in files), "\n".join(said)
    return [json.loads(file.read_text()) for file in files]


def of(played: list[dict[str, Any]], scene: Any) -> list[dict[str, Any]]:
    return [told[scene.__name__] for told in played]


def test_all_split_to_the_same_size_where_one_runs_out(played: list[dict[str, Any]]) -> None:
    expected = {"parts": 4, "size": 4, "ran_out": 2, "right": True}
    assert of(played, one_rank_runs_out) == [expected, expected]


def test_a_rank_with_fewer_samples_need_not_split(played: list[dict[str, Any]]) -> None:
    assert of(played, batches_of_other_sizes) == [
        {"parts": 1, "split": False, "right": True},
        {"parts": 2, "split": True, "right": True},
    ]


def test_replicas_reduce_once_when_all_are_through(played: list[dict[str, Any]]) -> None:
    expected = {"parts": 4, "right": True, "reductions": [23], "afterwards": True}
    assert of(played, replicas) == [expected, expected]


def test_a_rank_without_room_for_averaging_says_so_before_the_others_wait(
    played: list[dict[str, Any]],
) -> None:
    assert of(played, no_room_to_average) == [
        {"parts": 2, "asked": 0, "right": True},
        {"parts": 2, "asked": 1, "right": True},
    ]


def test_buffers_of_replicas_are_handed_out_before_anybody_can_run_out(played: list[dict[str, Any]]) -> None:
    first, second = of(played, replicas_with_buffers)
    assert first == second
    assert first["sizes"] == [8, 8]
    assert first["tracked"] == 4
    assert first["sync"]
    assert first["handed_out"], "each rank went on from its own"


def test_gradients_accumulate_as_they_do_without(played: list[dict[str, Any]]) -> None:
    assert of(played, accumulating) == [{"at_home": True, "twice": True}] * 2


def test_a_parameter_that_one_rank_uses_gets_its_gradient_on_all(played: list[dict[str, Any]]) -> None:
    assert of(played, used_on_one_rank_only) == [{"unused": True, "alike": True, "one": True}] * 2


def test_all_leave_when_one_fails_and_can_go_on(played: list[dict[str, Any]]) -> None:
    first, second = of(played, one_rank_fails)
    assert first["failure"] == ["ValueError", "planted elsewhere"]
    assert second["failure"][0] == "JobFailed"
    assert "failed on rank 0" in second["failure"][1]
    assert all(one["none"] and one["goes_on"] for one in (first, second))
    mistaken, other = of(played, a_batch_that_cannot_be_split)
    assert (mistaken["failure"][0], other["failure"][0]) == ("CallerMistake", "JobFailed")


def test_a_single_sample_that_does_not_fit_ends_all(played: list[dict[str, Any]]) -> None:
    first, second = of(played, nothing_fits)
    assert "on another rank a single sample" in first["failure"][1]
    assert "a single sample runs out of memory: planted" in second["failure"][1]
    assert second["calls"] == [16, 8, 4, 2, 1]


def test_sizes_grow_back_in_step(played: list[dict[str, Any]]) -> None:
    assert of(played, growing_back) == [{"sizes": [4, 4, 4, 4, 4, 4, 8, 8, 8]}] * 2


def test_a_group_says_who_takes_part(played: list[dict[str, Any]]) -> None:
    assert [one["parts"] for one in of(played, a_group_of_ones_own)] == [0, 4]


def test_a_communication_hook_is_refused(played: list[dict[str, Any]]) -> None:
    assert all("communication hook" in one["failure"][1] for one in of(played, a_hook_of_ones_own))


def test_models_in_which_a_rank_could_strand_the_others_are_refused(played: list[dict[str, Any]]) -> None:
    for told in of(played, models_that_strand):
        assert "DistributedDataParallel inside" in told["nested"][1]
        assert "a sharded model" in told["sharded"][1]
        assert "a SyncBatchNorm in Sequential" in told["synced"][1]
        assert told["evaluating"] == []


def test_a_search_goes_the_same_way_on_all(played: list[dict[str, Any]]) -> None:
    first, second = of(played, searching)
    assert first == second
    assert first["restored"]
    assert 8 <= first["found"][0] <= 20


if __name__ == "__main__":
    try:
        play(int(sys.argv[1]), Path(sys.argv[2]))
    except FlatoutError as error:
        sys.exit(str(error))
