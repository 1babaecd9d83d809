"""Tensors that wait on the host: what comes back is what left, bit for bit."""

import copy
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flatout.levers import saved_tensors  # noqa: E402
from flatout.levers.activation_offload import ActivationOffload  # noqa: E402
from flatout.levers.job import JobFacts  # noqa: E402
from flatout.levers.lever import Refused  # noqa: E402
from flatout.levers.offloading import Away, ToHost, is_plain  # noqa: E402
from flatout.levers.optimizer_offload import OptimizerOffload  # noqa: E402
from flatout.levers.optimizer_states import States, wait_for_states  # noqa: E402
from flatout.levers.saved_tensors import SavedTensors  # noqa: E402

nn = torch.nn
CPU = torch.device("cpu")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Any) -> Any:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def model_of() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), *(Block() for _ in range(3)), nn.Dropout(0.1), nn.Linear(16, 4))


def offloaded(model: Any, saved: SavedTensors, x: Any) -> Any:
    saved.begin(model)
    with torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
        return model(x)


def gradients(model: Any) -> list[Any]:
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every stay on the host."""
    found: list[Any] = []

    class Noted(Away):
        __slots__ = ()

        def __init__(self, torch: Any, tensor: Any) -> None:
            super().__init__(torch, tensor)
            found.append(tensor.nbytes)

    monkeypatch.setattr("flatout.levers.offloading.Away", Noted)
    return found


@pytest.mark.parametrize("window", [0, 2048, 1 << 30])
def test_gradients_are_the_same_bit_for_bit(window: int, sent: list[Any]) -> None:
    model, x = model_of(), torch.randn(32, 8)
    saved = SavedTensors(torch, CPU, 1.0, fewest_bytes=1, window_bytes=window)
    for _ in range(3):
        torch.manual_seed(1)
        model.zero_grad()
        model(x).pow(2).sum().backward()
        expected = gradients(model)
        torch.manual_seed(1)
        model.zero_grad()
        offloaded(model, saved, x).pow(2).sum().backward()
        assert all(torch.equal(a, b) for a, b in zip(gradients(model), expected, strict=True))
    assert sent


def test_a_graph_that_is_kept_can_be_gone_through_twice() -> None:
    model, x = model_of().eval(), torch.randn(4, 8)
    loss = offloaded(model, SavedTensors(torch, CPU, 1.0, fewest_bytes=1, window_bytes=512), x).sum()
    loss.backward(retain_graph=True)
    once = gradients(model)
    loss.backward()
    assert all(torch.equal(a, 2 * b) for a, b in zip(gradients(model), once, strict=True))


def test_weights_and_small_tensors_stay_and_nothing_is_sent_twice(sent: list[Any]) -> None:
    saved = SavedTensors(torch, CPU, 1.0, fewest_bytes=1024, window_bytes=0)
    weight = nn.Parameter(torch.randn(64, 64))
    saved.begin(SimpleNamespace(parameters=lambda: [weight]))
    large, small = torch.randn(64, 64), torch.randn(8, 8)
    assert saved.pack(weight).data_ptr() == weight.data_ptr()
    assert saved.pack(weight.t()) is not None
    assert saved.pack(small).data_ptr() == small.data_ptr()
    away = saved.pack(large)
    assert isinstance(away, Away)
    assert saved.pack(large) is away
    assert len(sent) == 1
    large.add_(1)
    assert saved.pack(large) is not away
    del large
    assert torch.equal(saved.unpack(away), away.host)


def test_memory_that_another_tensor_took_over_is_not_mistaken_for_the_first() -> None:
    saved = SavedTensors(torch, CPU, 1.0, fewest_bytes=1, window_bytes=0)
    saved.begin(nn.Identity())
    # The allocator gives the same place again and again.
    aways = [saved.pack(torch.full((1024,), float(number))) for number in range(50)]
    assert [float(saved.unpack(away)[0]) for away in aways] == [float(number) for number in range(50)]


def test_a_share_of_it_goes(sent: list[Any]) -> None:
    model, x = model_of(), torch.randn(256, 8)
    for share in (0.25, 0.75):
        sent.clear()
        saved = SavedTensors(torch, CPU, share, fewest_bytes=1, window_bytes=0)
        offloaded(model, saved, x).sum().backward()
        assert saved._sent_bytes == sum(sent)
        assert 0.5 * share < sum(sent) / saved._seen_bytes <= share


def test_what_was_saved_last_stays_from_the_second_pass_on(sent: list[Any]) -> None:
    model, x = model_of(), torch.randn(64, 8)
    saved = SavedTensors(torch, CPU, 1.0, fewest_bytes=1, window_bytes=40_000)
    counts = []
    for _ in range(3):
        sent.clear()
        offloaded(model, saved, x).sum().backward()
        counts.append(len(sent))
    assert counts[0] > counts[1] == counts[2] > 0


def test_a_host_without_room_gets_nothing(monkeypatch: pytest.MonkeyPatch, sent: list[Any]) -> None:
    monkeypatch.setattr(saved_tensors, "host_has_room", lambda _bytes: False)
    model = model_of()
    saved = SavedTensors(torch, CPU, 1.0, fewest_bytes=1, window_bytes=0)
    offloaded(model, saved, torch.randn(8, 8)).sum().backward()
    assert not sent


def test_nothing_is_held_after_the_backward_pass() -> None:
    model, x = model_of(), torch.randn(64, 8)
    saved = SavedTensors(torch, CPU, 1.0, fewest_bytes=1, window_bytes=1 << 20)
    for _ in range(2):
        offloaded(model, saved, x).sum().backward()
    gc.collect()
    assert not saved._coming
    assert not saved._out.is_busy
    assert not any(one() is not None for one in saved._away)


@pytest.mark.parametrize("fewest_bytes", [1, 1 << 30])
def test_a_pass_without_a_way_back_holds_nothing(fewest_bytes: int) -> None:
    # What is saved and stays must not hold the node that saves it: only Python's collector would find that.
    saved = SavedTensors(torch, CPU, 0.0, fewest_bytes=fewest_bytes, window_bytes=0)
    saved.begin(nn.Identity())
    with torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
        output = torch.ones(4, requires_grad=True).exp()
    held = weakref.ref(output)
    del output
    assert held() is None


def test_memory_of_what_is_fetched_in_vain_is_free_once_its_copy_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    saved = SavedTensors(torch, CPU, 1.0, fewest_bytes=1, window_bytes=1 << 20)
    waited: list[Any] = []
    monkeypatch.setattr(saved._back, "wait_for", waited.append)
    monkeypatch.setattr(saved._back, "copy", lambda *_args, **_kwargs: "its copy is done")
    saved.begin(nn.Identity())
    aways = [saved.pack(torch.full((256,), float(number))) for number in range(2)]
    saved.unpack(aways[1])
    assert len(waited) == 1
    assert saved._coming
    del aways
    saved.begin(nn.Identity())
    assert waited == ["its copy is done"] * 2
    assert not saved._coming


class Late(ToHost):
    """Copies that a device has not come to yet."""

    def __init__(self) -> None:
        super().__init__(torch, CPU, window_bytes=None)
        self.under_way: list[tuple[Any, Any]] = []

    def copy(self, target: Any, source: Any, after: Any = None) -> None:
        self.under_way.append((target, source.clone()))
        target.fill_(float("nan"))

    def finish(self) -> None:
        for target, source in self.under_way:
            target.copy_(source)
        self.under_way.clear()


@pytest.mark.parametrize("reads", ["state_dict", "state"])
def test_states_that_are_saved_right_after_an_update_are_whole(reads: str) -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    states = States(torch, CPU, optimizer, fewest_bytes=1)
    states._out = late = Late()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    assert late.under_way
    if reads == "state":
        wait_for_states(optimizer)
    saved = optimizer.state_dict()["state"] if reads == "state_dict" else optimizer.state
    assert saved
    assert all(bool(state["momentum_buffer"].isfinite().all()) for state in saved.values())
    states.give_back()
    assert not optimizer._optimizer_state_dict_pre_hooks


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop])
def test_updates_are_the_same_with_states_at_home_on_the_host(make: Any) -> None:
    settings = {"lr": 0.01} | ({"momentum": 0.9} if make is torch.optim.SGD else {})
    plain, other = model_of().eval(), model_of().eval()
    first, second = make(plain.parameters(), **settings), make(other.parameters(), **settings)
    states = States(torch, CPU, second, fewest_bytes=1)
    for number in range(4):
        x = torch.randn(16, 8)
        for model, optimizer in ((plain, first), (other, second)):
            optimizer.zero_grad()
            model(x).pow(2).sum().backward()
            optimizer.step()
        homes = {id(home.host) for home in states._homes.values()}
        held = [
            value for state in second.state.values() for value in state.values() if torch.is_tensor(value)
        ]
        assert {id(value) for value in held if value.nbytes >= 4 and value.dim()} <= homes
        assert states.is_leaving
        states.let_go(1.0 if number % 2 else 0.5)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), other.parameters(), strict=True))
    saved = copy.deepcopy(second.state_dict())
    states.give_back()
    assert not states.is_leaving
    first.load_state_dict(saved)
    again = [value for state in first.state.values() for value in state.values() if torch.is_tensor(value)]
    assert again


def test_an_update_that_was_skipped_leaves_states_where_they_are() -> None:
    model = model_of()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    states = States(torch, CPU, optimizer, fewest_bytes=1)
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    state = optimizer.state[next(model.parameters())]
    before = state["exp_avg"]
    optimizer.zero_grad()
    assert state["exp_avg"] is before
    states.give_back()
    assert torch.equal(state["exp_avg"], before)
    assert state["exp_avg"] is not before


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.zeros(3, 4), True),
        (torch.zeros(3, 4).t(), True),
        (torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last), True),
        (torch.zeros(()), True),
        (torch.zeros(3, 1).expand(3, 4), False),
        (torch.zeros(3, 8)[:, ::2], False),
        (torch.zeros(3, 3).to_sparse(), False),
    ],
)
def test_what_can_be_laid_down_elsewhere_as_it_lies(tensor: Any, expected: bool) -> None:
    assert is_plain(torch, tensor) is expected


def test_graphs_keep_their_own() -> None:
    compiled = SimpleNamespace(settings={"mode": "reduce-overhead"})
    scene: Any = SimpleNamespace(torch=torch, device=CPU, is_on=lambda _name: compiled)
    with pytest.raises(Refused, match="CUDA graphs"):
        ActivationOffload(scene, {}).apply()
    compiled.settings = {"mode": "default"}
    ActivationOffload(scene, {}).apply()


def test_they_are_for_gpus() -> None:
    for lever in (ActivationOffload, OptimizerOffload):
        assert "GPU" in lever.check(JobFacts())
    facts = {"optimizers": [{"name": "AdamW"}]}
    assert not OptimizerOffload.check(JobFacts(device="cuda", habits=facts))
    assert not ActivationOffload.check(JobFacts(device="cuda"))


def test_levers_come_on_and_off_between_steps() -> None:
    model = model_of().eval()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scene: Any = SimpleNamespace(
        torch=torch,
        device=CPU,
        is_on=lambda _name: None,
        optimizers=lambda: [optimizer],
        roots=lambda: [model],
    )
    x, calls = torch.randn(4, 8), []
    states, activations = OptimizerOffload(scene, {}), ActivationOffload(scene, {"share": 1.0})

    def call(*args: Any) -> Any:
        calls.append(args)
        return model(*args)

    for lever in (states, activations):
        lever.apply()
    around = states.around(model, activations.around(model, call))
    for _ in range(3):
        optimizer.zero_grad()
        around(x).sum().backward()
        optimizer.step()
    with torch.no_grad():
        around(x)
    states.undo()
    activations.undo()
    assert len(calls) == 4
    hooks = [optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks]
    assert not any(hooks)
    assert not any(module._forward_pre_hooks for module in model.modules())
