"""The batch size that is as fast as any and leaves room: few trials, sizes that ran, nothing left behind."""

import copy
import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import flatout  # noqa: E402
from flatout.memory.batch_search import Search, TriedSize, why  # noqa: E402
from flatout.memory.batch_trials import Wish, _Meter  # noqa: E402
from flatout.records.errors import CallerMistake, JobFailed  # noqa: E402

MIB = 2**20


class Simulated:
    """A device: memory is a line with steps in it, time has a part that no batch makes shorter."""

    def __init__(
        self,
        most: int,
        *,
        always_s: float = 1e-3,
        each_s: float = 1e-4,
        bend: float = 0.0,
        reads: bool = True,
    ) -> None:
        self.limit_bytes = self.bytes_for(most, bend)
        self.bend = bend
        self.always_s = always_s
        self.each_s = each_s
        self.reads = reads
        self.sizes: list[int] = []

    @staticmethod
    def bytes_for(size: int, bend: float) -> int:
        return 300 * MIB + round(size * (1 + bend * size) * 3.3 * MIB) // 512 * 512

    def run(self, size: int) -> TriedSize:
        self.sizes.append(size)
        took = self.bytes_for(size, self.bend)
        if took > 1.15 * self.limit_bytes:  # beyond the headroom, too
            return TriedSize(size, None, None, fits=False)
        speed = size / (self.always_s + self.each_s * size)
        return TriedSize(size, speed, took if self.reads else None, took <= self.limit_bytes)

    def search(self, **changes: Any) -> Search:
        options = {"limit_bytes": self.limit_bytes, "most": 65536, "first": 8, **changes}
        return Search(self.run, **options)


def doubling_and_bisection(device: Simulated, first: int = 8) -> tuple[int, int]:
    """What is usually done: the size it finds, and its trials."""
    good, bad = 0, first
    while device.run(bad).fits:
        good, bad = bad, 2 * bad
    while bad - good > 1:
        middle = (good + bad) // 2
        if device.run(middle).fits:
            good = middle
        else:
            bad = middle
    return good, len(device.sizes)


@pytest.mark.parametrize("most", [33, 50, 100, 127, 500, 777, 1000, 2048, 4000, 9999])
def test_half_the_trials_of_doubling_and_bisection_are_enough(most: int) -> None:
    """Where more is always faster, so that memory alone is the end of it."""
    slow = {"always_s": 10.0}
    end, baseline = doubling_and_bisection(Simulated(most, **slow))
    device = Simulated(most, **slow)
    found = device.search().find()
    assert end == most
    assert found.size >= 0.95 * most
    assert found.fits
    assert 2 * len(device.sizes) <= baseline


@pytest.mark.parametrize("bend", [0.0003, -0.00005])
def test_memory_that_is_no_line_costs_a_few_trials_more(bend: float) -> None:
    device = Simulated(700, always_s=10.0, bend=bend)
    found = device.search().find()
    assert found.fits
    assert 0.85 * 700 <= found.size <= 700
    assert len(device.sizes) <= 8


def test_the_knee_is_taken_not_the_end_of_memory() -> None:
    """97 % of the best is there long before memory ends."""
    device = Simulated(20_000)
    search = device.search()
    found = search.find()
    best = max(one.samples_per_s or 0 for one in search.tried if one.fits)
    assert 0.97 * best <= (found.samples_per_s or 0)
    assert found.size <= 400
    assert len(device.sizes) <= 8
    assert all(
        one.size >= found.size for one in search.tried if (one.samples_per_s or 0) >= 0.97 * best and one.fits
    )


def test_a_step_that_gains_nothing_is_not_made_larger() -> None:
    device = Simulated(60_000, always_s=0.0)
    assert device.search().find().size == 8
    assert len(device.sizes) == 3


def test_the_first_size_is_halved_until_it_fits() -> None:
    device = Simulated(3)
    assert device.search().find().size == 3
    assert device.sizes[:3] == [8, 4, 2]
    with pytest.raises(JobFailed, match="batch of 1 runs out of memory"):
        _never_fits().find()


def _never_fits() -> Search:
    return Search(lambda size: TriedSize(size, None, None, fits=False), limit_bytes=None, most=64, first=8)


def test_one_that_runs_but_leaves_too_little_is_said_to() -> None:
    search = Search(lambda size: TriedSize(size, 1.0, 10, fits=False), limit_bytes=5, most=64, first=8)
    with pytest.raises(JobFailed, match="leaves less memory free"):
        search.find()
    assert [one.size for one in search.tried] == [8, 4, 2, 1]


@pytest.mark.parametrize("most", [1, 5, 8, 30])
def test_nothing_larger_than_the_data_set_is_tried(most: int) -> None:
    device = Simulated(10_000, always_s=10.0)
    assert device.search(most=most).find().size == most
    assert max(device.sizes) <= most


def test_without_figures_of_memory_it_feels_its_way() -> None:
    device = Simulated(700, always_s=10.0, reads=False)
    found = device.search().find()
    assert 600 <= found.size <= 700
    assert len(device.sizes) <= 10


# Real steps on the CPU --------------------------------------------------------------------------------------


class Job:
    """A model with everything that training changes."""

    def __init__(self, most: int = 10**9) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=torch.tensor(0.1))
        self.most = most
        self.last = 0
        self.steps: dict[int, int] = {}

    def step(self, batch: Any) -> Any:
        self.last = len(batch)
        self.steps[self.last] = self.steps.get(self.last, 0) + 1
        loss = self.model(batch).square().mean()
        if len(batch) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return loss

    def memory(self) -> int:
        return 1000 + 10 * self.last

    def everything(self) -> list[Any]:
        """A copy of all that must be as it was."""
        return copy.deepcopy(
            [
                self.model.state_dict(),
                self.optimizer.state_dict(),
                [one.grad for one in self.model.parameters()],
                [one.training for one in self.model.modules()],
                torch.get_rng_state(),
            ]
        )


def batch_of(size: int) -> Any:
    return torch.randn(size, 4)


def identical(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(identical(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(identical(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "trained"])
@pytest.mark.parametrize("most", [10**9, 100, 5], ids=str)
def test_everything_is_put_back_bit_for_bit(most: int, is_new: bool) -> None:
    job = Job(most)
    if not is_new:
        for _ in range(2):
            job.optimizer.zero_grad()
            job.model(batch_of(8)).square().mean().backward()
            job.optimizer.step()
    before, weight = job.everything(), job.model[0].weight
    gradient = weight.grad

    def evaluate() -> None:
        job.model.eval()
        job.optimizer.param_groups[0]["lr"] = 5.0

    found = flatout.find_batch_size(
        job.step, batch_of, job.model, optimizer=job.optimizer, most=300, evaluate=evaluate
    )
    assert identical(job.everything(), before)
    assert job.model[0].weight is weight
    assert weight.grad is gradient
    assert found.evaluation == "fits"
    assert found.size <= min(most, 300)
    assert found.trials == len(found.tried) == len(job.steps)
    job.most = 10**9
    job.optimizer.zero_grad()
    job.step(batch_of(4)).backward()
    job.optimizer.step()


def test_an_optimizer_with_lists_in_its_state_is_put_back_too() -> None:
    job = Job()
    job.optimizer = torch.optim.LBFGS(job.model.parameters())
    step = job.optimizer.step
    for _ in range(2):
        job.optimizer.step(lambda: torch.autograd.backward(job.step(batch_of(8))) or torch.tensor(1.0))
    before = job.everything()
    job.optimizer.step = lambda: step(lambda: torch.tensor(1.0))  # type: ignore[method-assign]
    flatout.find_batch_size(job.step, batch_of, job.model, optimizer=job.optimizer, most=16, first=4)
    assert identical(job.everything(), before)


def test_a_budget_and_a_meter_of_ones_own() -> None:
    job = Job()
    found = flatout.find_batch_size(
        job.step, batch_of, job.model, memory=job.memory, budget_bytes=2000, headroom=0.1, first=4
    )
    assert all(one.fits == (one.peak_bytes is not None and one.peak_bytes <= 1800) for one in found.tried)
    assert [one.peak_bytes for one in found.tried] == [1000 + 10 * one.size for one in found.tried]
    assert found.size <= 80
    size, speed, peak, fits = found.tried[0]
    assert (size, peak, fits) == (4, 1040, True)
    assert speed
    assert f"of {len(found.tried)} sizes that ran, {found.size} is the smallest within 3 %" in found.why


def test_sizes_that_ran_out_are_not_among_those_that_ran() -> None:
    tried = [TriedSize(8, 10.0, None, fits=True), TriedSize(16, None, None, fits=False)]
    assert why(tried[0], tried, None).startswith("of 1 sizes that ran, 8 is")


def test_a_trial_waits_for_the_device_that_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[Any] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (1, 1))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _device: 0)
    wish = Wish(step=lambda _batch: None, make_batch=lambda _size: None)
    _Meter(wish, torch.device("cuda", 1)).wait()
    assert waited == [torch.device("cuda", 1)]


def test_a_data_set_that_is_used_up_is_the_end() -> None:
    """Samples that are not there are not counted, and nobody asks for more of them twice."""
    data, asked, longest, job = torch.randn(100, 4), [], [], Job()

    def step(batch: Any) -> Any:
        time.sleep(0.02)  # so that more is faster
        return job.step(batch)

    found = flatout.find_batch_size(
        step,
        lambda size: asked.append(size) or data[:size],
        job.model,
        longest=lambda size: longest.append(size) or data[:size],
    )
    assert [one.size for one in found.tried][:4] == [8, 16, 64, 100]
    assert len([size for size in asked if size > 100]) == 1
    assert max(longest) == 100
    assert found.size <= 100
    assert found.why.endswith("no larger batch than 100 could be filled: `make_batch` gave no more samples")


def test_a_first_size_that_the_data_set_cannot_fill() -> None:
    data, job = torch.randn(5, 4), Job()
    found = flatout.find_batch_size(job.step, lambda size: data[:size], job.model, first=64)
    assert [one.size for one in found.tried] == [5]
    assert "no larger batch than 5 could be filled" in found.why


def test_a_data_set_that_is_used_up_and_too_large_is_halved_from_its_own_size() -> None:
    data, job = torch.randn(40, 4), Job(most=12)
    found = flatout.find_batch_size(job.step, lambda size: data[:size], job.model, first=64)
    assert [one.size for one in found.tried][:3] == [40, 20, 10]
    assert found.size <= 12


def test_what_comes_first_in_a_batch_need_not_be_its_samples() -> None:
    """Sequences that lie across each other begin with their length, whatever the number of samples."""
    job = Job()
    found = flatout.find_batch_size(
        lambda batch: job.step(batch[0]), lambda size: torch.randn(2, size, 4), job.model, first=4, most=16
    )
    assert "could be filled" not in found.why
    assert [one.size for one in found.tried][:2] == [4, 8]


def test_the_fewest_samples_of_any_rank_are_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """This one has 40 of 64, another one 30."""
    data, job = torch.randn(40, 4), Job()
    others = [0, 0, 34, 0, -1]

    def largest(_self: Any, values: list[int]) -> list[int]:
        return [max(pair) for pair in zip(values, others, strict=True)]

    monkeypatch.setattr("flatout.memory.batch_trials.Ranks.largest", largest)
    found = flatout.find_batch_size(job.step, lambda size: data[:size], job.model, first=64)
    assert found.tried[0].size == 30
    assert "no larger batch than 30" in found.why


def test_each_trial_takes_two_steps_or_more_and_one_of_the_longest() -> None:
    job, longest = Job(), []
    flatout.find_batch_size(
        job.step,
        batch_of,
        job.model,
        steps=2,
        most=8,
        longest=lambda size: longest.append(size) or batch_of(size),
    )
    assert job.steps == {8: 3}
    assert longest == [8]


def test_the_longest_samples_decide_what_fits() -> None:
    job = Job(most=40)
    found = flatout.find_batch_size(
        job.step, batch_of, job.model, longest=lambda size: batch_of(4 * size), most=64, first=16
    )
    assert found.tried[0] == (16, None, None, False)
    assert found.size <= 10


def test_an_evaluation_that_runs_out_is_reported_and_shrinks_nothing() -> None:
    job = Job()

    def evaluate() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried\nand more")

    found = flatout.find_batch_size(job.step, batch_of, job.model, evaluate=evaluate, most=8)
    assert found.evaluation == "ran out of memory: CUDA out of memory. Tried"
    assert found.size == 8
    assert flatout.find_batch_size(job.step, batch_of, job.model, most=8).evaluation is None


@pytest.mark.parametrize("where", ["step", "evaluate", "make_batch"])
def test_an_unrelated_error_comes_as_it_is_and_all_is_put_back(where: str) -> None:
    job = Job()
    before = job.everything()

    def fails(*_: Any) -> Any:
        job.step(batch_of(2))
        raise RuntimeError("planted")

    parts = {"step": job.step, "make_batch": batch_of, "evaluate": None, "most": 16, where: fails}
    with pytest.raises(RuntimeError, match="planted"):
        flatout.find_batch_size(model=job.model, optimizer=job.optimizer, **parts)
    assert identical(job.everything(), before)


def test_a_single_sample_that_does_not_fit_is_said_to() -> None:
    job = Job(most=0)
    job.model = nn.Linear(4, 1)
    with pytest.raises(JobFailed, match="batch of 1 runs out of memory"):
        flatout.find_batch_size(job.step, batch_of, job.model)
    assert list(job.steps) == [8, 4, 2, 1]


@pytest.mark.parametrize(
    "options",
    [{"most": 0}, {"first": 0}, {"steps": 1}, {"headroom": 1.0}, {"headroom": -0.1}, {"budget_bytes": 1000}],
    ids=str,
)
def test_what_makes_no_sense_is_a_mistake(options: dict[str, Any]) -> None:
    job = Job()
    with pytest.raises(CallerMistake, match=next(iter(options))):
        flatout.find_batch_size(job.step, batch_of, job.model, **options)
    assert not job.steps
