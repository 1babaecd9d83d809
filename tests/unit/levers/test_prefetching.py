# ruff: noqa: PLW2901 - loops as people write them
"""Batches ahead of time: in order, each once, in whatever nesting; only what nobody could miss."""

import collections
import dataclasses
import gc
import sys
import time
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from flatout.inside.batch_uses import BatchUses  # noqa: E402
from flatout.levers.batches import leaves, map_leaves  # noqa: E402
from flatout.levers.device_prefetch import DevicePrefetch  # noqa: E402
from flatout.levers.job import JobFacts  # noqa: E402
from flatout.levers.prefetching import Ahead, Mover, Prefetched  # noqa: E402


class Pair(NamedTuple):
    """A batch with names."""

    image: Any
    label: Any


@dataclasses.dataclass
class Graph:
    """A batch of a class of its own."""

    nodes: Any
    name: str = "g"


META = torch.device("meta")
ONE = torch.ones(2)
NESTED = [
    ONE,
    (ONE, ONE + 1),
    [ONE, "text", None],
    {"a": ONE, "b": {"c": (ONE, 3)}},
    Pair(ONE, ONE),
    Graph(ONE),
    collections.OrderedDict(a=ONE),
    collections.UserDict({"input_ids": ONE, "length": 3}),
]


@pytest.mark.parametrize("batch", NESTED, ids=lambda batch: type(batch).__name__)
def test_every_tensor_moves_and_everything_else_stays(batch: Any) -> None:
    moved = map_leaves(lambda _path, tensor: tensor.to(META), batch)
    assert type(moved) is type(batch)
    assert [path for path, _ in leaves(moved)] == [path for path, _ in leaves(batch)]
    assert all(tensor.device == META for _, tensor in leaves(moved))
    assert all(tensor.device.type == "cpu" for _, tensor in leaves(batch)), "the original was changed"


def test_paths_name_what_people_see() -> None:
    batch = ({"image": ONE, "boxes": [ONE, ONE]}, ONE)
    assert [path for path, _ in leaves(batch)] == ["0.image", "0.boxes.0", "0.boxes.1", "1"]
    only = map_leaves(lambda path, tensor: tensor.to(META) if path == "1" else tensor, batch)
    assert only[0] is batch[0]
    assert only[1].device == META


@pytest.mark.parametrize("workers", [0, 2])
def test_a_prefetched_loader_yields_what_the_loader_yields(workers: int) -> None:
    loader = DataLoader(torch.arange(23), batch_size=4, num_workers=workers)
    prefetched = Prefetched(loader, "cpu")
    for _epoch in range(2):
        assert [batch.tolist() for batch in prefetched] == [batch.tolist() for batch in loader]
    assert len(prefetched) == len(loader)
    assert prefetched.batch_size == 4


def test_what_is_fetched_ahead_is_handed_out_once_and_errors_come_in_their_place() -> None:
    def batches() -> Any:
        yield 1
        yield 2
        raise ValueError("planted")

    source = batches()
    ahead = Ahead(Mover(torch, torch.device("cpu")), lambda: next(source), lambda: True)
    assert ahead.next() == 1
    assert ahead.has_one
    assert ahead.next(look_ahead=False) == 2
    with pytest.raises(ValueError, match="planted"):
        ahead.next()
    with pytest.raises(StopIteration):
        ahead.next()


def test_nothing_is_fetched_before_it_is_ready() -> None:
    fetched = []
    ahead = Ahead(Mover(torch, torch.device("cpu")), lambda: fetched.append(1) or len(fetched), lambda: False)
    assert [ahead.next(), ahead.next()] == [1, 2]
    assert len(fetched) == 2


# The lever, with a mover that stays on the CPU: what it does to a loader's iterator -------------------------


class Root:
    training = True


def lever_on(device: str = "cpu", **settings: Any) -> DevicePrefetch:
    root = Root()
    scene = SimpleNamespace(torch=torch, infers=False, device=torch.device("cuda"), roots=lambda: [root])
    lever = DevicePrefetch(scene, settings)  # type: ignore[arg-type]
    lever._mover = Mover(torch, torch.device(device))
    return lever


def test_switching_it_on_and_off_in_mid_epoch_loses_no_batch_and_leaves_no_trace() -> None:
    kind = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    found = vars(kind)["_next_data"]
    lever, seen = lever_on(), []
    batches = iter(DataLoader(torch.arange(40), batch_size=2, num_workers=1))
    for number in range(20):
        if number in (3, 9):
            lever.apply()
        if number in (6, 15):
            lever.undo()
        seen.append(next(batches).tolist())
    assert seen == [[n, n + 1] for n in range(0, 40, 2)]
    assert vars(kind)["_next_data"] is found
    del batches
    gc.collect()
    assert not len(lever._ahead)


def test_an_epoch_that_was_left_early_leaves_nothing_to_the_next() -> None:
    """Lasting workers keep their iterator: what was fetched ahead is no batch of the next epoch."""
    loader = DataLoader(torch.arange(40), batch_size=4, num_workers=1, persistent_workers=True)
    lever, epochs = lever_on(), []
    lever.apply()
    for _ in range(3):
        seen = []
        for batch in loader:
            seen.append(batch.tolist()[0])
            time.sleep(0.05)  # so that the next one lies ready
            if len(seen) == 4:
                break
        epochs.append(seen)
    lever.undo()
    assert epochs == [[0, 4, 8, 12]] * 3


def test_another_data_set_and_an_evaluation_are_left_alone() -> None:
    lever = lever_on(_data_set="torch.Tensor of 8")
    other = iter(DataLoader(torch.arange(40), batch_size=2, num_workers=1))
    own = iter(DataLoader(torch.arange(8), batch_size=2, num_workers=1))
    lever.apply()
    next(other)
    next(own)
    assert other not in lever._ahead
    assert own in lever._ahead
    lever.scene.roots()[0].training = False
    next(own)
    next(own)
    assert not lever._ahead[own][1].has_one
    lever.undo()


def test_it_is_refused_where_it_could_be_told() -> None:
    uses = {"copied": ["0"], "data_set": "d"}
    job = JobFacts(
        device="cuda:0",
        habits={"batch_uses": uses},
        loaders=({"num_workers": 2},),
        device_shares={"copies": 0.05},
    )
    assert not DevicePrefetch.check(job)
    assert DevicePrefetch.variants(job) == ({"_leaves": ["0"], "_data_set": "d"},)
    assert "no workers" in DevicePrefetch.check(dataclasses.replace(job, loaders=({"num_workers": 0},)))
    assert "GPU" in DevicePrefetch.check(dataclasses.replace(job, device="cpu"))
    assert "0.5 %" in DevicePrefetch.check(dataclasses.replace(job, device_shares={"copies": 0.001}))
    told = {"copied": [], "reason": "the loop does more with it"}
    assert "more" in DevicePrefetch.check(dataclasses.replace(job, habits={"batch_uses": told}))


# What the loop does with a batch ----------------------------------------------------------------------------


# As the loader tap does it, from a file that is nobody's: the user's frame is that of the loop.
WATCHED = """
class Watched:
    def __init__(self, uses, loader):
        self.uses, self.loader = uses, loader
    def __iter__(self):
        self.batches = iter(self.loader)
        return self
    def __next__(self):
        batch = next(self.batches)
        self.uses.came(self.batches, batch)
        return batch
"""


def copied_by(loop: Any) -> dict[str, Any]:
    """What is learned of a loop that gets batches and calls the model."""
    if "torch._dynamo.utils" in sys.modules:  # where code was compiled, it does not look
        torch._dynamo.utils.counters.clear()
    names: dict[str, Any] = {}
    exec(compile(WATCHED, "<watched>", "exec"), names)
    uses = BatchUses(torch)
    loop(names["Watched"](uses, DataLoader([(torch.ones(3), 1)] * 16, batch_size=2)), uses.root_called)
    return uses.describe()


def copies(loader: Any, model: Any) -> None:
    for x, y in loader:
        x, y = x.to("meta", non_blocking=True), y.to("meta")
        model()


def test_a_batch_that_is_taken_under_a_mode_of_the_scripts_own_is_not_watched() -> None:
    def loop(loader: Any, model: Any) -> None:
        batches = iter(loader)
        for _ in range(4):
            with torch.device("meta"):
                next(batches)
            # The block has taken off its own, and nobody else's.
            assert not torch.overrides._len_torch_function_stack()
            assert torch.ones(1).device.type == "cpu"
            model()

    assert copied_by(loop)["copied"] == []


def copies_one_by_one(loader: Any, model: Any) -> None:
    for number, (x, y) in enumerate(loader):
        assert number >= 0
        x = x.to("meta")
        y = y.to("meta")
        model()


def keeps_one(loader: Any, model: Any) -> None:
    for x, y in loader:
        kept = x
        x, y = x.to("meta"), y.to("meta")
        model()
        assert kept is not None


def looks_first(loader: Any, model: Any) -> None:
    for x, y in loader:
        x.mean()
        x, y = x.to("meta"), y.to("meta")
        model()


def looks_now_and_then(loader: Any, model: Any) -> None:
    for number, (x, y) in enumerate(loader):
        if number == 1000:
            x.numpy()
        x, y = x.to("meta"), y.to("meta")
        model()


def copies_now_and_then(loader: Any, model: Any) -> None:
    for x, y in loader:
        if y is not None:
            x = x.to("meta")
        y = y.to("meta")
        model()


def changes_first(loader: Any, model: Any) -> None:
    for x, y in loader:
        x = x.half().to("meta")
        y = y.to("meta")
        model()


def takes_them_otherwise(loader: Any, model: Any) -> None:
    batches = iter(loader)
    while (batch := next(batches, None)) is not None:
        x, y = batch
        del batch
        x, y = x.to("meta"), y.to("meta")
        model()


def never_copies(loader: Any, model: Any) -> None:
    for _batch in loader:
        model()


@pytest.mark.parametrize(
    ("loop", "copied"),
    [
        (copies, ["0", "1"]),
        (copies_one_by_one, ["0", "1"]),
        (keeps_one, ["1"]),
        (looks_first, ["1"]),
        (looks_now_and_then, ["1"]),
        (copies_now_and_then, []),
        (changes_first, ["1"]),
        (takes_them_otherwise, []),
        (never_copies, []),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_only_what_is_copied_at_once_and_gone_may_travel(loop: Any, copied: list[str]) -> None:
    found = copied_by(loop)
    assert found["copied"] == copied
    assert not torch.overrides._len_torch_function_stack()
    if not copied:
        assert "more with a batch's tensor" in found["reason"]
