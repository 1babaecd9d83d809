"""From Python: a plan applied to objects at hand, loader settings by trying, batches ahead of time."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset, IterableDataset  # noqa: E402

import flatout  # noqa: E402
from flatout.entry import loading  # noqa: E402
from flatout.records.errors import BadConfig, CallerMistake  # noqa: E402
from flatout.records.plan import Choice, Fingerprint, Plan  # noqa: E402

JOB = Fingerprint(script="train.py", script_sha256="")


class Slow(Dataset):  # type: ignore[type-arg]
    """Takes its time."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, place: int) -> Any:
        time.sleep(0.02)
        return torch.tensor(float(place))


class Endless(IterableDataset):  # type: ignore[type-arg]
    """Never asks which worker it is in."""

    def __iter__(self) -> Any:
        return iter(range(8))


@pytest.fixture(autouse=True)
def _everything_is_taken_off_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made: list[Any] = []
    real = flatout.apply

    def apply(*args: Any) -> Any:
        made.append(real(*args))
        return made[-1]

    monkeypatch.setattr(flatout, "apply", apply)
    yield
    for applied in made:
        applied.undo()


def plan(*levers: Choice) -> Plan:
    return Plan(job=JOB, levers=levers)


def losses(model: Any, optimizer: Any, loader: Any) -> list[float]:
    found = []
    for batch in loader:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def parts() -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    data = torch.randn(32, 4)
    return model, optimizer, DataLoader(data, batch_size=4)


def test_a_plan_is_applied_and_taken_off_again() -> None:
    expected = losses(*parts())
    model, optimizer, loader = parts()
    applied = flatout.apply(
        plan(
            Choice(id="fused-optimizer"),
            Choice(id="loader", settings={"num_workers": 1, "persistent_workers": True}),
            Choice(id="batch-size", settings={"--batch": 8}),
            Choice(id="from-the-future"),
            Choice(id="tf32"),
        ),
        model,
        optimizer,
        loader,
    )
    same, also_same, new = applied
    assert (same, also_same) == (model, optimizer)
    assert (new.num_workers, new.batch_size, loader.num_workers) == (1, 4, 0)
    assert optimizer.param_groups[0]["fused"]
    assert set(applied.levers) == {"fused-optimizer", "loader"}
    assert set(applied.dropped) == {"batch-size", "from-the-future", "tf32"}
    assert losses(*applied) == pytest.approx(expected, rel=1e-5)
    applied.undo()
    assert not optimizer.param_groups[0]["fused"]
    assert "_compiled_call_impl" not in model.__dict__
    assert model(torch.ones(1, 4)).shape == (1, 2)


def test_a_plan_is_read_from_its_file(tmp_path: Path) -> None:
    plan(Choice(id="fused-optimizer")).write(tmp_path / "flatout.toml")
    without = flatout.apply(plan(Choice(id="loader", settings={"num_workers": 1})), *parts()[:2])
    assert without.dropped == {"loader": "no loader was given"}
    assert flatout.apply(tmp_path / "flatout.toml", *parts()[:2]).levers == ("fused-optimizer",)
    with pytest.raises(BadConfig):
        flatout.apply(tmp_path / "none.toml", *parts())


def test_a_loader_that_cannot_bear_it_stays() -> None:
    model, optimizer, _ = parts()
    loader = DataLoader(Endless(), batch_size=2)
    levers = plan(Choice(id="loader", settings={"num_workers": 2}))
    applied = flatout.apply(levers, model, optimizer, loader)
    assert applied.loader is loader
    assert "twice" in applied.dropped["loader"]

    class Own(DataLoader):  # type: ignore[type-arg]
        pass

    own = Own(torch.ones(4), batch_size=2)
    assert flatout.apply(levers, model, optimizer, own).loader is own


def test_evaluation_runs_as_written() -> None:
    model, optimizer, _ = parts()
    flatout.apply(plan(Choice(id="bf16")), model, optimizer)
    x = torch.randn(3, 4)
    with torch.no_grad():
        assert torch.equal(model(x), nn.functional.linear(x, model.weight, model.bias))


@pytest.mark.parametrize(
    ("rates", "wanted", "chosen", "says"),
    [
        ([960.0, 1005.0, 2000.0], 1000.0, 2, "deliver 1005"),
        ([960.0, 1005.0, 1100.0], None, 4, "deliver 1100"),
        ([500.0, 960.0, 990.0], 1000.0, 2, "no count delivers 1000"),
    ],
)
def test_the_fewest_workers_that_deliver_what_is_wanted(
    monkeypatch: pytest.MonkeyPatch, rates: list[float], wanted: float | None, chosen: int, says: str
) -> None:
    monkeypatch.setattr(loading, "worker_counts", lambda _host: [0, 2, 4])
    by_count = dict(zip([0, 2, 4], rates, strict=True))
    monkeypatch.setattr(loading, "_rate", lambda _data, count, *_: by_count[count])
    found = flatout.loader_settings(Slow(), samples_per_s=wanted)
    assert found.settings["num_workers"] == chosen
    assert says in found.reason


def test_a_rate_is_of_samples_whoever_makes_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10_000))
    monkeypatch.setattr(loading.time, "perf_counter", lambda: float(next(clock)))
    data = torch.arange(6)
    # A batch takes two readings of this clock, one a second; the end of a pass takes one.
    by_sampler = loading._rate(data, 0, 1, 40.0, {"batch_sampler": [[0, 1, 2], [3, 4, 5]]})
    by_size = loading._rate(data, 0, 3, 40.0, {})
    assert by_sampler == pytest.approx(by_size, rel=0.1)
    with_a_short_one = loading._rate(data, 0, 4, 40.0, {})
    assert with_a_short_one == pytest.approx(by_size, rel=0.1)
    with pytest.raises(CallerMistake, match="no batch"):
        loading._rate(torch.arange(0), 0, 2, 40.0, {})
    with pytest.raises(CallerMistake, match="no batch"):
        loading._rate(torch.arange(1), 0, 2, 40.0, {"drop_last": True})
    assert loading._rate(Endless(), 0, 2, 40.0, {}) > 0


def test_workers_are_found_by_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    # They sleep, and need no cores: four are four times as fast on any machine.
    monkeypatch.setattr(loading, "worker_counts", lambda _host: [0, 1, 4])
    found = flatout.loader_settings(Slow(), batch_size=2, seconds=0.4)
    assert found.settings["num_workers"] >= 1
    assert found.settings["persistent_workers"]
    assert [one.num_workers for one in found.tried][:2] == [0, 1]
    DataLoader(Slow(), batch_size=2, **found.settings)


def test_workers_do_not_outlive_an_epoch_that_they_must_hear_of(monkeypatch: pytest.MonkeyPatch) -> None:
    class Curriculum(Slow):
        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    monkeypatch.setattr(loading, "worker_counts", lambda _host: [2])
    monkeypatch.setattr(loading, "_rate", lambda *_: 1.0)
    assert flatout.loader_settings(Slow()).settings == {"num_workers": 2, "persistent_workers": True}
    assert flatout.loader_settings(Curriculum()).settings == {"num_workers": 2}


def test_no_more_workers_than_the_step_can_use() -> None:
    found = flatout.loader_settings(Slow(), batch_size=2, seconds=0.2, samples_per_s=10)
    assert found.settings["num_workers"] == 0
    assert len(found.tried) == 1
    starved = flatout.loader_settings(Slow(), batch_size=2, seconds=0.2, samples_per_s=1e9)
    assert "no count delivers" in starved.reason


def test_a_data_set_that_would_yield_twice_gets_none() -> None:
    found = flatout.loader_settings(Endless())
    assert found.settings["num_workers"] == 0
    assert "twice" in found.reason
    assert found.tried == ()


def test_prefetched_batches_are_on_the_device() -> None:
    batches = list(flatout.prefetch([(torch.ones(2), {"a": torch.ones(1)})], "meta"))
    assert batches[0][0].device.type == "meta"
    assert batches[0][1]["a"].device.type == "meta"


def test_what_no_other_process_can_find_is_not_tuned() -> None:
    with pytest.raises(CallerMistake, match="cannot be found"):
        flatout.tune(lambda: (*parts(), print))
    with pytest.raises(AttributeError, match="no attribute"):
        flatout.tuned  # type: ignore[attr-defined]  # noqa: B018


def test_a_loader_keeps_its_sampler_whatever_its_data_set_is() -> None:
    """A list, and many a data set of others, can be iterated and is no stream."""
    model, optimizer, _ = parts()
    levers = plan(Choice(id="loader", settings={"num_workers": 1}))
    loader = DataLoader([torch.ones(4)] * 8, batch_size=2, shuffle=True, timeout=0)
    new = flatout.apply(levers, model, optimizer, loader).loader
    assert new.sampler is loader.sampler
    assert (new.num_workers, new.batch_size) == (1, 2)


def test_undoing_leaves_the_users_own_compiled_call() -> None:
    model, optimizer, _ = parts()
    own = model._call_impl
    model.__dict__["_compiled_call_impl"] = own
    applied = flatout.apply(plan(Choice(id="fused-optimizer")), model, optimizer)
    applied.undo()
    assert model.__dict__["_compiled_call_impl"] is own


def test_levers_belong_inside_of_what_ranks_are_wrapped_in() -> None:
    class DistributedDataParallel(nn.Sequential):
        """As much of torch's as is looked at."""

    model, optimizer, _ = parts()
    wrapped = DistributedDataParallel()
    wrapped.module = model
    applied = flatout.apply(plan(Choice(id="fused-optimizer")), wrapped, optimizer)
    assert "_compiled_call_impl" in model.__dict__
    assert "_compiled_call_impl" not in wrapped.__dict__
    applied.undo()
    assert "_compiled_call_impl" not in model.__dict__


@pytest.mark.parametrize(
    "options", [{"only": "bf16"}, {"only": ["bf61"]}, {"skip": ["x"]}, {"goal": "fame"}], ids=str
)
def test_names_that_nobody_knows_are_mistakes(options: dict[str, Any]) -> None:
    with pytest.raises(CallerMistake):
        flatout.tune(parts, **options)
