"""Recovery from running out of memory: the whole batch's gradients, nothing left behind, no thrashing."""

import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import flatout  # noqa: E402
from flatout.memory.part_sizes import Sizes  # noqa: E402
from flatout.records.errors import CallerMistake, JobFailed  # noqa: E402

Batch = tuple[Any, Any]


class Tight:
    """A step for which more than so many samples are too many; counts and remembers its calls."""

    def __init__(self, model: Any, most: int, *, where: str = "forward") -> None:
        self.model = model
        self.most = most
        self.where = where
        self.calls: list[int] = []
        self.held: list[weakref.ref[Any]] = []

    def __call__(self, part: Batch) -> Any:
        x, y = part
        self.calls.append(len(x))
        activations = self.model(x)
        self.held.append(weakref.ref(activations))
        if len(x) > self.most:
            if self.where == "forward":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore words.")
            activations = RunsOut.apply(activations)
        return (activations - y).square().mean()


class RunsOut(torch.autograd.Function):
    """Fails on the way back, when gradients of later layers are there already."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.")


def exact(samples: int = 16) -> tuple[Any, Batch]:
    """A linear model and a batch of small whole numbers: all sums and halves are exact."""
    model = nn.Linear(4, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randint(-3, 4, parameter.shape))
    batch = torch.randint(-3, 4, (samples, 4)).float(), torch.randint(-3, 4, (samples, 2)).float()
    return model, batch


def deep(samples: int = 13) -> tuple[Any, Batch]:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
    return model, (torch.randn(samples, 4), torch.randn(samples, 2))


def gradients(model: Any) -> list[Any]:
    return [None if one.grad is None else one.grad.clone() for one in model.parameters()]


def whole(model: Any, step: Callable[[Any], Any], batch: Any) -> tuple[list[Any], Any]:
    """What plain torch gives without a split; leaves no gradients."""
    loss = step(batch)
    loss.backward()
    found = gradients(model)
    model.zero_grad()
    return found, loss.detach()


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("most", [8, 4, 2, 1])
def test_halves_of_exact_numbers_give_the_same_bits(most: int, where: str) -> None:
    model, batch = exact()
    expected, loss = whole(model, Tight(model, 99), batch)
    step = Tight(model, most, where=where)
    done = flatout.microbatch(step, batch, model)
    assert (done.parts, done.size, done.had_to_split) == (16 // most, most, True)
    assert done.ran_out == {8: 1, 4: 2, 2: 3, 1: 4}[most]
    assert all(torch.equal(a, b) for a, b in zip(gradients(model), expected, strict=True))
    assert torch.equal(done.loss, loss)
    assert not done.loss.requires_grad


@pytest.mark.parametrize("most", [12, 6, 3, 1])
def test_any_model_and_a_last_part_with_fewer_are_as_good_as_the_whole(most: int) -> None:
    model, batch = deep()
    expected, loss = whole(model, Tight(model, 99), batch)
    done = flatout.microbatch(Tight(model, most), batch, model)
    assert done.had_to_split
    for found, right in zip(gradients(model), expected, strict=True):
        torch.testing.assert_close(found, right)
    torch.testing.assert_close(done.loss, loss)


def test_what_fits_is_run_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    emptied = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(1))
    monkeypatch.setattr(gc, "collect", lambda: emptied.append(2))
    model, batch = deep()
    expected, loss = whole(model, Tight(model, 99), batch)
    step = Tight(model, 99)
    weighed: list[Any] = []
    done = flatout.microbatch(step, batch, model, weigh=weighed.append)
    assert (done.parts, done.size, done.ran_out, done.had_to_split) == (1, 13, 0, False)
    assert (step.calls, emptied, weighed) == ([13], [], [])
    assert torch.equal(done.loss, loss)
    assert all(torch.equal(a, b) for a, b in zip(gradients(model), expected, strict=True))


def test_memory_is_freed_once_before_a_retry_when_nothing_holds_on_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, batch = deep(16)
    step = Tight(model, 4)
    freed: list[tuple[int, bool]] = []
    monkeypatch.setattr(
        torch.cuda,
        "empty_cache",
        lambda: freed.append((len(step.calls), any(held() is not None for held in step.held))),
    )
    flatout.microbatch(step, batch, model)
    # After each attempt that ran out, and with all its tensors gone.
    assert freed == [(1, False), (2, False)]
    assert step.calls == [16, 8, 4, 4, 4, 4]


def test_a_given_size_is_where_it_begins() -> None:
    model, batch = exact()
    expected, _ = whole(model, Tight(model, 99), batch)
    step = Tight(model, 99)
    done = flatout.microbatch(step, batch, model, size=4)
    assert (done.parts, done.size, done.had_to_split, step.calls) == (4, 4, False, [4] * 4)
    assert all(torch.equal(a, b) for a, b in zip(gradients(model), expected, strict=True))


def test_a_mean_over_tokens_is_weighed_by_what_counts() -> None:
    """Padding is not spread evenly: a mean of means would be another loss. One part has nothing to learn."""
    model = nn.Linear(4, 5)
    x, y = torch.randn(8, 3, 4), torch.randint(0, 5, (8, 3))
    y[1:3, 1:], y[4:6], y[7] = -100, -100, -100

    def step(part: Batch) -> Any:
        if len(part[0]) > 2:
            raise torch.OutOfMemoryError("planted")
        return of(part)

    def of(part: Batch) -> Any:
        return nn.functional.cross_entropy(model(part[0]).flatten(0, 1), part[1].flatten())

    expected, loss = whole(model, of, (x, y))
    done = flatout.microbatch(step, (x, y), model, weigh=lambda part: (part[1] != -100).sum())
    assert done.parts == 4
    for found, right in zip(gradients(model), expected, strict=True):
        torch.testing.assert_close(found, right)
    torch.testing.assert_close(done.loss, loss)


def test_gradients_of_parts_that_came_before_it_ran_out_are_dropped() -> None:
    """The second half is longer than the first: when it runs out, the first has its gradients already."""
    model, batch = exact()
    expected, _ = whole(model, Tight(model, 99), batch)
    calls: list[int] = []
    last: list[weakref.ref[Any]] = []

    def step(part: Batch) -> Any:
        assert all(loss() is None for loss in last), "the graph of the part before is still held"
        calls.append(len(part[0]))
        loss = Tight(model, 99)(part)
        if calls == [8, 8]:
            raise torch.OutOfMemoryError("planted")
        last[:] = [weakref.ref(loss)]
        return loss

    done = flatout.microbatch(step, batch, model, size=8)
    assert calls == [8, 8, 4, 4, 4, 4]
    assert (done.ran_out, done.had_to_split) == (1, True)
    assert all(torch.equal(a, b) for a, b in zip(gradients(model), expected, strict=True))


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_earlier_gradients_are_kept_exactly(where: str) -> None:
    model, batch = exact()
    frozen = nn.Linear(1, 1)
    both = nn.ModuleList([model, frozen])
    whole(model, Tight(model, 99), batch)
    Tight(model, 99)(batch).backward()
    model.bias.grad = None
    earlier = gradients(model)
    expected, _ = whole(nn.ModuleList(), Tight(model, 99), batch)
    assert expected == []
    twice = gradients(model)
    for parameter, kept in zip(model.parameters(), earlier, strict=True):
        parameter.grad = kept if kept is None else kept.clone()
    very_same = model.weight.grad
    flatout.microbatch(Tight(model, 4, where=where), batch, both)
    assert model.weight.grad is very_same
    assert frozen.weight.grad is None
    assert all(torch.equal(a, b) for a, b in zip(gradients(model), twice, strict=True))


@pytest.mark.parametrize(
    "error",
    [RuntimeError("shapes do not match"), ValueError("CUDA out of memory"), KeyboardInterrupt()],
    ids=repr,
)
def test_an_unrelated_error_comes_as_it_is_and_is_never_made_smaller(error: BaseException) -> None:
    model, batch = exact()
    model.weight.grad = torch.ones_like(model.weight)
    earlier, calls = gradients(model), []

    def step(part: Batch) -> Any:
        calls.append(len(part[0]))
        if len(calls) == 2:
            raise error
        return Tight(model, 99)(part)

    with pytest.raises(type(error)) as raised:
        flatout.microbatch(step, batch, model, size=4)
    assert raised.value is error
    assert calls == [4, 4]
    assert model.bias.grad is None
    assert torch.equal(model.weight.grad, earlier[0])


def test_a_single_sample_that_does_not_fit_is_said_to() -> None:
    model, batch = exact(5)
    model.weight.grad = torch.ones_like(model.weight)
    step = Tight(model, 0)
    with pytest.raises(JobFailed, match="single sample runs out of memory: CUDA out of memory") as raised:
        flatout.microbatch(step, batch, model)
    assert step.calls == [5, 3, 2, 1]
    assert raised.value.__context__ is None, "the frames of the step are still held"
    assert "More words" not in str(raised.value)
    assert torch.equal(model.weight.grad, torch.ones(2, 4))
    assert model.bias.grad is None


def test_random_numbers_begin_anew_with_each_attempt() -> None:
    model, batch = exact(8)
    drawn: list[float] = []

    def step(part: Batch) -> Any:
        drawn.append(torch.rand(()).item())
        return Tight(model, 2)(part)

    torch.manual_seed(3)
    flatout.microbatch(step, batch, model)
    torch.manual_seed(3)
    first = [torch.rand(()).item() for _ in range(4)]
    assert drawn == [first[0], first[0], *first]


def test_dropout_draws_other_numbers_in_parts_and_the_same_in_the_same_parts() -> None:
    model, batch = deep(8)
    model.append(nn.Dropout(0.5))
    found = []
    for size, most in ((4, 99), (None, 4)):
        torch.manual_seed(1)
        flatout.microbatch(Tight(model, most), batch, model, size=size)
        found.append(gradients(model))
        model.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_batch_norm_is_warned_of_once_and_failed_attempts_leave_its_statistics_alone() -> None:
    model, batch = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)), deep(8)[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flatout.microbatch(Tight(model, 99), batch, model)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    identity = [id(buffer) for buffer in model.buffers()]
    with pytest.warns(UserWarning, match="batch norm") as caught:
        flatout.Microbatch(Tight(model, 4), model)(batch)
    assert caught[0].filename == __file__
    split = {name: buffer.clone() for name, buffer in model.named_buffers()}
    assert split["1.num_batches_tracked"] == 3, "the failed attempt counts as none"
    assert identity == [id(buffer) for buffer in model.buffers()]
    # As if the two halves had been all there was.
    for name, buffer in model.named_buffers():
        buffer.copy_(before[name])
    flatout.microbatch(Tight(model, 99), batch, model, size=4)
    assert all(torch.equal(buffer, split[name]) for name, buffer in model.named_buffers())
    with pytest.raises(CallerMistake, match="a step that returned"):
        flatout.microbatch(lambda part: model(part[0]), batch, model)
    assert all(torch.equal(buffer, split[name]) for name, buffer in model.named_buffers())
    model.eval()
    flatout.microbatch(Tight(model, 4), batch, nn.ModuleList([model]))


def test_buffers_that_a_failed_attempt_replaced_are_back() -> None:
    class Counting(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 2)
            self.register_buffer("seen", torch.zeros(()))
            self.register_buffer("wide", torch.ones(1).expand(3))
            self.register_buffer("none", None)

        def forward(self, x: Any) -> Any:
            self.seen = self.seen + 1
            return super().forward(x)

    model, batch = Counting(), exact()[1]
    flatout.microbatch(Tight(model, 8), batch, model)
    assert model.seen == 2
    assert model.wide.tolist() == [1, 1, 1]


def test_parameters_will_do_where_there_is_no_one_model() -> None:
    model, batch = exact()
    expected, _ = whole(model, Tight(model, 99), batch)
    flatout.microbatch(Tight(model, 8), batch, model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(gradients(model), expected, strict=True))


def test_sparse_gradients_add_up() -> None:
    model = nn.Embedding(10, 3, sparse=True)
    batch = torch.randint(0, 10, (8,))

    def step(part: Any) -> Any:
        if len(part) > 4:
            raise torch.OutOfMemoryError("planted")
        return model(part).square().mean()

    for _ in range(2):
        flatout.microbatch(step, batch, model)
    right = torch.autograd.grad(2 * model(batch).square().mean(), model.weight)[0]
    torch.testing.assert_close(model.weight.grad.to_dense(), right.to_dense())


def test_a_wrapper_that_reduces_does_so_with_the_last_part_only() -> None:
    heard: list[str] = []

    class Reducing(nn.Linear):
        def no_sync(self) -> Any:
            return Quiet()

    class Quiet:
        def __enter__(self) -> None:
            heard.append("quiet")

        def __exit__(self, *_: object) -> None:
            heard.append("loud")

    model = Reducing(4, 2)

    def step(part: Batch) -> Any:
        heard.append("step")
        return Tight(model, 99)(part)

    flatout.microbatch(step, exact()[1], model, size=8)
    assert heard == ["quiet", "step", "loud", "step"]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"size": 0}, "size=0"),
        ({"weigh": "tokens"}, "weigh='tokens'"),
        ({"weigh": lambda part: -1, "size": 4}, "weights of parts"),
        ({"samples": lambda batch: 7}, "7 as its first dimension"),
    ],
)
def test_what_makes_no_sense_is_a_mistake(options: dict[str, Any], match: str) -> None:
    model, batch = exact()
    with pytest.raises(CallerMistake, match=match):
        flatout.microbatch(Tight(model, 99), batch, model, **options)


@pytest.mark.parametrize("model", [None, [], [1], torch.ones(2), nn.Tanh()], ids=str)
def test_a_model_must_be_one(model: Any) -> None:
    with pytest.raises(CallerMistake, match="model"):
        flatout.microbatch(Tight(None, 1), torch.ones(2), model)


@pytest.mark.parametrize("loss", [None, 1.0, torch.ones(2)], ids=str)
def test_a_step_must_return_one_loss(loss: Any) -> None:
    with pytest.raises(CallerMistake, match="a step that returned"):
        flatout.microbatch(lambda part: loss, torch.ones(2), nn.Linear(1, 1))


# From batch to batch ----------------------------------------------------------------------------------------


def test_the_size_that_fitted_is_remembered_and_grows_back() -> None:
    model, batch = exact()
    tight = Tight(model, 4)
    step = flatout.Microbatch(tight, model, grow_after=3)
    assert step.size is None
    assert step(batch).ran_out == 2
    tight.calls.clear()
    done = step(batch)
    assert (done.ran_out, done.had_to_split, done.size, step.size) == (0, True, 4, 4)
    assert tight.calls == [4] * 4
    tight.most = 99
    sizes = [step(batch).size for _ in range(6)]
    assert sizes == [4, 8, 8, 8, 16, 16]
    assert not step(batch).had_to_split


def test_growing_that_fails_goes_back_without_a_word_and_waits_longer_each_time() -> None:
    model, batch = exact()
    tight = Tight(model, 4)
    step = flatout.Microbatch(tight, model, grow_after=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ran_out = [step(batch).ran_out for _ in range(60)]
    tries = [number for number, times in enumerate(ran_out) if times]
    assert step.size == 4
    assert tries == [0, 2, 6, 14, 30]
    assert all(ran_out[number] == 1 for number in tries[1:])


def test_a_grown_size_that_fails_later_goes_back_too() -> None:
    sizes = Sizes(None, 2)
    sizes.ran_out(4)
    for _ in range(2):
        assert sizes.next() == 4
        sizes.went_well(16)
    assert sizes.next() == 8
    sizes.went_well(16)
    assert sizes.smaller_than(8) == 4
    assert sizes.smaller_than(3) == 2, "a batch of three is smaller than what came before"
    sizes.ran_out(4)
    for _ in range(4):
        assert sizes.next() == 4
        sizes.went_well(16)
    assert sizes.next() == 8


def test_batches_that_need_no_split_teach_nothing_and_no_size_outgrows_what_was_asked() -> None:
    sizes = Sizes(6, 1)
    sizes.ran_out(4)
    for _ in range(5):
        assert sizes.next() == 4
        sizes.went_well(4)
    sizes.went_well(12)
    assert sizes.next() == 6
    sizes.went_well(12)
    assert sizes.next() == 6
