"""One process: the same code with nothing wrapped, layers over devices, and what the environment must say."""

import sys
from collections import OrderedDict, namedtuple
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import flatout  # noqa: E402
from flatout.records.errors import CallerMistake, UnknownName  # noqa: E402
from flatout.runtime.parallel.choosing import choose, states_bytes  # noqa: E402
from flatout.runtime.parallel.joining import join  # noqa: E402
from flatout.runtime.parallel.layers import Layers, LayersOptions  # noqa: E402
from flatout.runtime.parallel.nested import tensors_in, to  # noqa: E402
from flatout.runtime.parallel.parameters import as_spread  # noqa: E402
from flatout.runtime.parallel.wrapped import Job  # noqa: E402
from tests.unit.runtime.parallel.trainings import alone, loader_of, seeded, together  # noqa: E402

STRATEGIES = ("auto", "ddp", "fsdp", "tensor", "pipeline")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_process_trains_the_same_with_nothing_wrapped(strategy: str, tmp_path: Any) -> None:
    model, optimizer = seeded()
    twin, its = seeded()
    loader = loader_of()
    hook = sys.excepthook
    with flatout.parallel(strategy, model=model, optimizer=optimizer, loader=loader) as world:
        assert world.model is model
        assert (world.rank, world.count, world.is_main) == (0, 1, True)
        assert world.loader is loader
        assert together(world, 2) == alone(twin, its, 2)
        world.barrier()
        world.save(tmp_path / "model.pt", epoch=3)
        assert world.load(tmp_path / "model.pt") == {"epoch": 3}
        assert "one process" in world.reason
    assert sys.excepthook is hook
    assert not torch.distributed.is_initialized()


def test_blocks_are_computed_again_until_the_end_in_one_process_too() -> None:
    model, optimizer = seeded()
    twin, its = seeded()
    with flatout.parallel("fsdp", model=model, optimizer=optimizer, checkpoint=0.5) as world:
        assert "2 of 4 blocks are computed again" in world.reason
        assert "forward" in vars(model.blocks[0])
        assert together(world, 2) == alone(twin, its, 2)
    assert "forward" not in vars(model.blocks[0])


def test_an_unknown_strategy_or_option_names_the_nearest() -> None:
    model, _ = seeded()
    with pytest.raises(UnknownName, match="did you mean 'fsdp'"):
        flatout.parallel("fsdp2", model=model)
    with pytest.raises(UnknownName, match="did you mean 'static_graph'"):
        flatout.parallel("ddp", model=model, static_graphs=True)
    with pytest.raises(UnknownName, match="option of 'auto'"):
        flatout.parallel("auto", model=model, precision="bf16")


def test_half_an_environment_is_refused_with_the_command_to_start_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = seeded()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(CallerMistake, match=r"without RANK[\s\S]*torchrun --nproc-per-node"):
        flatout.parallel("ddp", model=model)
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    with pytest.raises(CallerMistake, match="each process would train by itself"):
        flatout.parallel("ddp", model=model)
    # As a refusal leaves no trace, the model can still be used.
    monkeypatch.delenv("SLURM_NTASKS")
    flatout.parallel("ddp", model=model).close()


@pytest.mark.parametrize(
    ("wanted", "chosen"), [(None, "cuda:1"), ("cuda", "cuda:1"), ("cuda:2", "cuda:2"), ("cpu", "cpu")]
)
def test_a_gpu_is_the_local_ranks_or_the_one_that_was_named_and_is_current(
    monkeypatch: pytest.MonkeyPatch, wanted: str | None, chosen: str
) -> None:
    made_current: list[str] = []
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: made_current.append(str(device)))
    assert str(join(timeout_s=1.0, device=wanted).device) == chosen
    assert made_current == ([] if chosen == "cpu" else [chosen])


def test_a_model_is_parallel_once_at_a_time() -> None:
    model, _ = seeded()
    with (
        flatout.parallel("ddp", model=model),
        pytest.raises(CallerMistake, match=r"flatout\.parallel is called once for each"),
    ):
        flatout.parallel("fsdp", model=model)
    flatout.parallel("ddp", model=model).close()


def test_a_wrapped_model_is_refused() -> None:
    with pytest.raises(CallerMistake, match="in DistributedDataParallel already"):
        flatout.parallel("ddp", model=nn.DataParallel(nn.Linear(2, 2)))


# Layers over devices ---------------------------------------------------------------------------------------


def job_of(model: Any, optimizer: Any = None) -> Job:
    here: Any = SimpleNamespace(rank=0, count=1, device=torch.device("cpu"))
    return Job(here, model, optimizer)


def test_layers_over_devices_learn_the_same() -> None:
    model, optimizer = seeded()
    twin, its = seeded()
    more = {"devices": ["cpu", "cpu"], "checkpoint": True}
    with flatout.parallel("layers", model=model, optimizer=optimizer, **more) as world:
        assert "4 blocks on 2 devices (2/2)" in world.reason
        assert together(world, 2) == alone(twin, its, 2)
    assert not model.blocks[0]._forward_pre_hooks


def test_blocks_go_to_devices_in_order_and_tied_parts_stay_together() -> None:
    model, _ = seeded()
    placed = Layers(job_of(model), LayersOptions(devices=["cpu"] * 3)).placement
    on = [placed[f"blocks.{at}"] for at in range(4)]
    assert on == sorted(on)
    assert {*on} == {0, 1, 2}
    assert placed["head"] == placed["tokens"] == 0
    assert placed["norm"] == 2


def test_inputs_are_brought_to_the_device_of_each_block() -> None:
    """The meta device stands for a second one: it is another device, and takes any tensor."""
    blocks = nn.Sequential(*(_Named(nn.Sequential(nn.Linear(4, 4), nn.ReLU())) for _ in range(2)))
    wrapped = Layers(job_of(blocks), LayersOptions(devices=["cpu", "meta"]))
    seen = []
    blocks[1].register_forward_pre_hook(lambda _module, args: seen.append(args[0].device.type))
    output = blocks[1](blocks[0](torch.ones(1, 4)))
    assert seen == ["meta"]
    assert output.device.type == "meta"
    assert [one.device.type for one in (blocks[0].inner[0].weight, blocks[1].inner[0].weight)] == [
        "cpu",
        "meta",
    ]
    wrapped.close()


class _Named(nn.Module):
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x)


class _Output(OrderedDict[str, Any]):
    """As Hugging Face's: its keys are attributes, and it cannot be updated."""

    def __getattr__(self, name: str) -> Any:
        return self[name]

    def update(self, *_more: Any, **_words: Any) -> None:
        raise TypeError


_Pair = namedtuple("_Pair", "loss logits")


def test_whatever_holds_tensors_stays_of_its_kind() -> None:
    given = {"a": _Output(loss=torch.ones(2)), "b": [_Pair(torch.ones(1), None), (3, torch.ones(()))]}
    moved = to(given, "meta")
    assert type(moved["a"]) is _Output
    assert moved["a"].loss.device.type == "meta"
    assert moved["b"][0].loss.device.type == "meta"
    assert moved["b"][0].logits is None
    assert moved["b"][1][0] == 3
    assert [one.device.type for one in tensors_in(moved)] == ["meta"] * 3
    assert given["a"].loss.device.type == "cpu"


def test_more_devices_than_blocks_are_refused() -> None:
    with pytest.raises(CallerMistake, match="4 repeated blocks, for 5 devices"):
        Layers(job_of(seeded()[0]), LayersOptions(devices=["cpu"] * 5))


def test_a_part_of_a_tensor_does_not_keep_the_whole() -> None:
    from torch.distributed.tensor import Shard, init_device_mesh, zeros

    dist = torch.distributed
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        like = zeros(4, 2, device_mesh=init_device_mesh("cpu", (1,)), placements=[Shard(0)])
        whole = torch.arange(8.0).view(4, 2)
        part = as_spread(whole, like).to_local()
        assert torch.equal(part, whole)
        assert part.data_ptr() != whole.data_ptr()
    finally:
        dist.destroy_process_group()


# Choosing --------------------------------------------------------------------------------------------------


def test_auto_takes_ddp_where_a_device_holds_all_states_else_fsdp() -> None:
    model = nn.Linear(1000, 1000, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())
    assert states_bytes(model, optimizer) == 4 * 4_000_000
    assert states_bytes(model, torch.optim.SGD(model.parameters())) == 2 * 4_000_000
    assert states_bytes(model, torch.optim.SGD(model.parameters(), momentum=0.9)) == 3 * 4_000_000
    ranks: Any = SimpleNamespace(count=2, device=torch.device("cpu"), local_count=2)
    fits = choose(model, optimizer, ranks, memory_bytes=27_000_000)
    assert fits.strategy == "ddp"
    tight = choose(model, optimizer, ranks, memory_bytes=26_000_000)
    assert tight.strategy == "fsdp"
    assert "take 15 MiB, over 60 % of a device's 25 MiB" in tight.reason
