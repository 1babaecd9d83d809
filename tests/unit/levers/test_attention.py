"""Hand-written attention, in the forms that people write: found, proven and rewritten."""

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flatout.levers.attention import Attention  # noqa: E402
from flatout.levers.compile import Compile  # noqa: E402
from flatout.levers.lever import Broken  # noqa: E402

# The compiler itself uses what torch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

nn, F = torch.nn, torch.nn.functional
HEADS, WIDTH, LENGTH = 4, 32, 16
Form = Callable[[Any, Any, Any, Any], Any]


class Model(nn.Module):  # type: ignore[misc, name-defined]
    """Projections around an attention in some form; a causal mask lies in a buffer."""

    def __init__(self, form: Form, heads: int = HEADS) -> None:
        super().__init__()
        self.form, self.heads = form, heads
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64))

    def forward(self, x: Any, padding: Any = None) -> Any:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).split(width, dim=2)
        if self.heads:
            q, k, v = (one.view(batch, length, self.heads, -1).transpose(1, 2) for one in (q, k, v))
        mask = self.mask if padding is None else padding
        y = self.form(q, k, v, mask)
        if self.heads:
            y = y.transpose(1, 2).reshape(batch, length, width)
        return self.out(y)


def by_the_book(q: Any, k: Any, v: Any, mask: Any) -> Any:
    n = q.size(-2)
    scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    scores = scores.masked_fill(mask[:, :, :n, :n] == 0, float("-inf"))
    return F.softmax(scores, dim=-1) @ v


def with_dropout_switched_off(q: Any, k: Any, v: Any, mask: Any) -> Any:
    n = q.size(-2)
    scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(k.size(-1))
    scores = scores.masked_fill(mask[..., :n, :n] < 0.5, -1e9)
    return torch.matmul(F.dropout(torch.softmax(scores, -1), 0.1, training=False), v)


def scaled_before(q: Any, k: Any, v: Any, mask: Any) -> Any:
    n = q.size(-2)
    scores = (q * q.size(-1) ** -0.5) @ k.mT
    future = torch.triu(torch.ones(n, n, dtype=torch.bool, device=q.device), diagonal=1)
    return scores.masked_fill(future, torch.finfo(scores.dtype).min).softmax(dim=-1) @ v


def by_where(q: Any, k: Any, v: Any, mask: Any) -> Any:
    n = q.size(-2)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    scores = torch.where(mask[:, :, :n, :n] > 0, scores, float("-inf"))
    return scores.softmax(-1) @ v


def by_addition(q: Any, k: Any, v: Any, mask: Any) -> Any:
    n = q.size(-2)
    added = torch.full((n, n), float("-inf"), device=q.device).triu(1)
    scores = added + q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    return scores.float().softmax(-1).type_as(v) @ v


def by_einsum(q: Any, k: Any, v: Any, mask: Any) -> Any:
    n = q.size(-2)
    scores = torch.einsum("b h i d, b h j d -> b h i j", q, k) * q.size(-1) ** -0.5
    scores = scores.masked_fill(mask[:, :, :n, :n] == 0, -1e10)
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(dim=-1), v)


def heads_third(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Dimensions as flax has them: (batch, position, head, feature)."""
    n = q.size(-2)
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.size(-1))
    scores = scores.masked_fill(mask[:, :, :n, :n] == 0, float("-inf"))
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(dim=-1), v).transpose(1, 2)


def nothing_masked(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).softmax(-1) @ v


FOUND = [
    by_the_book,
    with_dropout_switched_off,
    scaled_before,
    by_where,
    by_addition,
    by_einsum,
    heads_third,
    nothing_masked,
]


class Stage:
    """What levers see, without a session."""

    def __init__(self, *on: Any, same_random: bool = False) -> None:
        self.torch, self.device, self.same_random = torch, torch.device("cpu"), same_random
        self.levers = [kind(self, settings) for kind, settings in on]

    def is_on(self, name: str) -> Any:
        return next((lever for lever in self.levers if lever.id == name), None)

    def call(self, root: Any) -> Callable[..., Any]:
        call = root._call_impl
        for lever in sorted(self.levers, key=lambda one: one.layer):
            call = lever.around(root, call)
        return call

    @property
    def useless(self) -> str:
        return "; ".join(lever.useless for lever in self.levers if lever.useless)


def trained(model: Any, call: Callable[..., Any], *inputs: Any) -> tuple[Any, list[Any]]:
    model.zero_grad()
    torch.manual_seed(5)
    out = call(*inputs)
    out.square().mean().backward()
    return out.detach(), [parameter.grad.clone() for parameter in model.parameters()]


def same(first: tuple[Any, list[Any]], second: tuple[Any, list[Any]], tolerance: float = 1e-5) -> bool:
    pairs = [(first[0], second[0]), *zip(first[1], second[1], strict=True)]
    return all(float((a - b).norm()) <= tolerance * float(a.norm() + 1e-6) for a, b in pairs)


@pytest.fixture(autouse=True)
def from_nothing() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def operators_of(call: Callable[..., Any], *inputs: Any) -> set[str]:
    with torch.profiler.profile() as profile:
        call(*inputs)
    return {event.key for event in profile.key_averages()}


@pytest.mark.parametrize("form", FOUND, ids=lambda form: form.__name__)
def test_a_form_that_people_write_is_found_and_computes_the_same(form: Form) -> None:
    model, x = Model(form), torch.randn(2, LENGTH, WIDTH)
    call = Stage((Attention, {})).call(model)
    assert same(trained(model, model, x), trained(model, call, x))
    used = operators_of(call, x)
    assert "aten::scaled_dot_product_attention" in used
    assert not any(name.startswith("aten::masked_fill") for name in used), "the mask is still applied"


def test_a_causal_mask_is_known_by_its_values() -> None:
    """The fast kernels want to be told that the mask is causal, and no mask."""
    model, x = Model(by_the_book), torch.randn(2, LENGTH, WIDTH)
    graphs = rewritten_graphs(model, x)
    assert [node.kwargs["is_causal"] for node in graphs] == [True]
    assert [node.kwargs["attn_mask"] for node in graphs] == [None]


def test_a_window_is_a_mask_and_not_causal() -> None:
    model, x = Model(by_the_book), torch.randn(2, LENGTH, WIDTH)
    model.mask.copy_(torch.tril(torch.ones(64, 64)) * torch.triu(torch.ones(64, 64), -3))
    before = trained(model, model, x)
    graphs = rewritten_graphs(model, x)
    assert [node.kwargs["is_causal"] for node in graphs] == [False]
    assert same(before, trained(model, Stage((Attention, {})).call(model), x))


def rewritten_graphs(model: Any, *inputs: Any) -> list[Any]:
    lever = Stage((Attention, {})).levers[0]
    rewriter, found = lever.rewriter(model), []

    def backend(module: Any, given: Any) -> Any:
        rewriter.rewrite(module, given)
        found.extend(node for node in module.graph.nodes if "scaled_dot_product" in str(node.target))
        return module.forward

    torch.compile(model, backend=backend)(*inputs)
    return found


def test_a_mask_that_comes_with_the_batch_is_never_taken_for_causal() -> None:
    """Today's may be causal by chance; tomorrow's hides a sentence's end."""
    model, x = Model(by_the_book), torch.randn(2, LENGTH, WIDTH)
    causal = torch.tril(torch.ones(2, 1, LENGTH, LENGTH))
    short = causal.clone()
    short[1, :, :, 9:] = 0
    call = Stage((Attention, {})).call(model)
    for padding in (causal, short):
        assert same(trained(model, model, x, padding), trained(model, call, x, padding))
    assert "aten::scaled_dot_product_attention" in operators_of(call, x, short)


def test_rows_with_nothing_to_see_stay_what_the_script_made_of_them() -> None:
    """A large negative number instead of infinity gives such rows the mean of everything."""

    def padded(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return (q @ k.mT / 4.0).masked_fill(mask == 0, -1e9).softmax(-1) @ v

    model, x = Model(padded), torch.randn(2, LENGTH, WIDTH)
    padding = torch.ones(2, 1, LENGTH, LENGTH)
    padding[1, :, 9:] = 0
    call = Stage((Attention, {})).call(model)
    assert same(trained(model, model, x, padding), trained(model, call, x, padding))


def write_to_it(model: Any) -> None:
    model.mask.fill_(1.0)


def replace_it(model: Any) -> None:
    model.mask = torch.ones_like(model.mask)


@pytest.mark.parametrize("change", [write_to_it, replace_it], ids=lambda change: change.__name__)
def test_a_buffer_that_changes_ends_the_rewrite(change: Any) -> None:
    model, x = Model(by_the_book), torch.randn(2, LENGTH, WIDTH)
    call = Stage((Attention, {})).call(model)
    call(x)
    change(model)
    with pytest.raises(Broken, match="written to or replaced") as raised:
        call(x)
    assert raised.value.lever == "attention"


def written_into(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """A causal mask made on the spot, into which the batch's padding is written."""
    n = q.size(-2)
    hidden = torch.triu(torch.ones(n, n, dtype=torch.bool), 1).repeat(len(q), 1, 1, 1)
    hidden.masked_fill_(mask[:, :, :1, :n] == 0, True)
    return (q @ k.mT / 3.0).masked_fill(hidden, float("-inf")).softmax(-1) @ v


def set_into(q: Any, k: Any, v: Any, mask: Any) -> Any:
    n = q.size(-2)
    hidden = torch.triu(torch.ones(n, n, dtype=torch.bool), 1).repeat(len(q), 1, 1, 1)
    hidden[mask[:, :, :n, :n] == 0] = True
    return (q @ k.mT / 3.0).masked_fill(hidden, float("-inf")).softmax(-1) @ v


@pytest.mark.parametrize("form", [written_into, set_into], ids=lambda form: form.__name__)
def test_a_mask_into_which_the_batchs_own_is_written_is_not_constant(form: Form) -> None:
    model, x = Model(form), torch.randn(2, LENGTH, WIDTH)
    nothing, some = torch.ones(2, 1, LENGTH, LENGTH), torch.ones(2, 1, LENGTH, LENGTH)
    some[1, :, :, 9:] = 0
    call = Stage((Attention, {})).call(model)
    for padding in (nothing, some):
        assert same(trained(model, model, x, padding), trained(model, call, x, padding))


def test_layers_that_share_a_mask_are_all_rewritten() -> None:
    class Deep(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Model(added) for _ in range(3))

        def forward(self, x: Any) -> Any:
            bias = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)
            for layer in self.layers:
                x = x + layer(x, bias)
            return x

    def added(q: Any, k: Any, v: Any, bias: Any) -> Any:
        return (q @ k.mT / 3.0 + bias).softmax(-1) @ v

    model, x = Deep(), torch.randn(2, LENGTH, WIDTH)
    assert [node.kwargs["is_causal"] for node in rewritten_graphs(model, x)] == [True] * 3
    assert same(trained(model, model, x), trained(model, Stage((Attention, {})).call(model), x))


def test_arguments_may_come_by_name() -> None:
    def named(q: Any, k: Any, v: Any, mask: Any) -> Any:
        scores = (q @ k.mT / 3.0).masked_fill(mask=mask[:, :, : q.size(-2), : q.size(-2)] == 0, value=-1e9)
        weights = F.dropout(input=F.softmax(input=scores, dim=-1), p=0.5, training=False)
        return weights @ v

    model, x = Model(named), torch.randn(2, LENGTH, WIDTH)
    call = Stage((Attention, {})).call(model)
    assert same(trained(model, model, x), trained(model, call, x))
    assert "aten::scaled_dot_product_attention" in operators_of(call, x)


def test_a_dropout_that_is_told_not_to_train_does_not() -> None:
    def untrained(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return torch.dropout((q @ k.mT / 3.0).softmax(-1), p=0.5, train=False) @ v

    model, x = Model(untrained), torch.randn(2, LENGTH, WIDTH)
    assert same(trained(model, model, x), trained(model, Stage((Attention, {})).call(model), x))


# What only looks like it ------------------------------------------------------------------------------------


def weights_are_returned(q: Any, k: Any, v: Any, mask: Any) -> Any:
    weights = (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).softmax(-1)
    return weights @ v + weights.sum(dim=-1, keepdim=True)


def over_the_queries(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).softmax(-2) @ v


def a_weak_mask(q: Any, k: Any, v: Any, mask: Any) -> Any:
    n = q.size(-2)
    return (q @ k.transpose(-2, -1)).masked_fill(mask[:, :, :n, :n] == 0, -3.0).softmax(-1) @ v


def a_cap_on_scores(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return torch.tanh(q @ k.transpose(-2, -1)).softmax(-1) @ v


def scaled_after_the_mask_is_added(q: Any, k: Any, v: Any, mask: Any) -> Any:
    n = q.size(-2)
    return ((q @ k.transpose(-2, -1) + mask[:, :, :n, :n]) * 0.25).softmax(-1) @ v


def a_share_of_a_bias(q: Any, k: Any, v: Any, mask: Any) -> Any:
    n = q.size(-2)
    return torch.add(q @ k.transpose(-2, -1), mask[:, :, :n, :n], alpha=0.5).softmax(-1) @ v


def a_bias_over_a_finite_mask(q: Any, k: Any, v: Any, mask: Any) -> Any:
    n = q.size(-2)
    hidden = mask[:, :, :n, :n] == 0
    return ((q @ k.mT).masked_fill(hidden, -1e9) + mask[:, :, :n, :n]).softmax(-1) @ v


def no_product(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return (q + k).softmax(-1) * v


LEFT = [
    weights_are_returned,
    over_the_queries,
    a_weak_mask,
    a_cap_on_scores,
    scaled_after_the_mask_is_added,
    a_share_of_a_bias,
    a_bias_over_a_finite_mask,
    no_product,
]


@pytest.mark.parametrize("form", LEFT, ids=lambda form: form.__name__)
def test_what_only_looks_like_attention_stays(form: Form) -> None:
    model, x = Model(form), torch.randn(2, LENGTH, WIDTH)
    stage = Stage((Attention, {}))
    out = stage.call(model)(x)
    assert "no attention was found" in stage.useless
    assert torch.allclose(out, model(x))  # what the call returned stands


def test_a_rewrite_that_is_wrong_on_the_jobs_own_inputs_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should the match ever be wrong, the proof stands behind it."""
    from flatout.levers import attention_forms

    real = attention_forms._factor
    monkeypatch.setattr(
        attention_forms, "_factor", lambda node, name: (out := real(node, name)) and (1.01 * out[0], out[1])
    )
    model, x = Model(by_the_book), torch.randn(2, LENGTH, WIDTH)
    stage = Stage((Attention, {}))
    stage.call(model)(x)
    assert "the fused call is off by" in stage.useless


# In company -------------------------------------------------------------------------------------------------


def test_with_the_compiler_one_graph_is_rewritten_and_compiled() -> None:
    model, x = Model(by_the_book), torch.randn(2, LENGTH, WIDTH)
    call = Stage((Attention, {}), (Compile, {"mode": "default"})).call(model)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert same(trained(model, model, x), trained(model, call, x))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before + 1
    used = operators_of(call, x)
    assert any("scaled_dot_product" in name for name in used)
    assert "aten::_softmax" not in used


def test_the_compiler_alone_does_not_run_what_was_compiled_with_the_rewrite() -> None:
    model, x = Model(by_the_book), torch.randn(2, LENGTH, WIDTH)
    both = Stage((Attention, {}), (Compile, {"mode": "default"})).call(model)
    alone = Stage((Compile, {"mode": "default"})).call(model)
    both(x)
    assert not any("scaled_dot_product" in name for name in operators_of(alone, x))
    assert any("scaled_dot_product" in name for name in operators_of(both, x))


def test_under_autocast_it_computes_what_autocast_would() -> None:
    model, x = Model(by_the_book), torch.randn(2, LENGTH, WIDTH)
    call = Stage((Attention, {})).call(model)
    with torch.autocast("cpu", torch.bfloat16):
        as_written, rewritten = trained(model, model, x), trained(model, call, x)
    assert as_written[0].dtype == rewritten[0].dtype
    assert same((as_written[0].float(), as_written[1]), (rewritten[0].float(), rewritten[1]), 0.03)


def test_dropout_draws_as_written_where_the_guard_asks_for_it() -> None:
    def dropped(q: Any, k: Any, v: Any, mask: Any) -> Any:
        n = q.size(-2)
        scores = (q @ k.transpose(-2, -1) / 3.0).masked_fill(mask[:, :, :n, :n] == 0, float("-inf"))
        return F.dropout(scores.softmax(-1), 0.3, True) @ v

    model, x = Model(dropped), torch.randn(2, LENGTH, WIDTH)
    call = Stage((Attention, {}), same_random=True).call(model)
    call(x)  # what is captured draws, too
    assert same(trained(model, model, x), trained(model, call, x))


def test_the_proof_leaves_random_numbers_and_statistics_alone() -> None:
    class Normed(Model):
        def __init__(self) -> None:
            super().__init__(by_the_book)
            self.norm = nn.BatchNorm1d(WIDTH)

        def forward(self, x: Any, padding: Any = None) -> Any:
            return super().forward(self.norm(x.transpose(1, 2)).transpose(1, 2), padding)

    model, x = Normed(), torch.randn(2, LENGTH, WIDTH)
    torch.manual_seed(3)
    Stage((Attention, {})).call(model)(x)
    after = torch.rand(1), model.norm.num_batches_tracked.item(), model.norm.running_mean.clone()
    model.norm.reset_running_stats()
    torch.manual_seed(3)
    model(x)
    assert torch.equal(after[0], torch.rand(1))
    assert after[1] == model.norm.num_batches_tracked.item()
    assert torch.allclose(after[2], model.norm.running_mean)


def test_one_head_without_a_dimension_of_its_own() -> None:
    def single(q: Any, k: Any, v: Any, mask: Any) -> Any:
        n = q.size(-2)
        scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.size(-1))
        return torch.bmm(scores.masked_fill(mask[0, :, :n, :n] == 0, float("-inf")).softmax(2), v)

    model, x = Model(single, heads=0), torch.randn(2, LENGTH, WIDTH)
    call = Stage((Attention, {})).call(model)
    assert same(trained(model, model, x), trained(model, call, x))


def test_it_is_refused_where_there_is_none_or_the_script_compiles() -> None:
    from flatout.levers.job import JobFacts

    assert "compiles itself" in Attention.check(JobFacts(habits={"compiles": True}))
    assert "softmax" in Attention.check(JobFacts(habits={"operators": ["aten.mm"]}))
    assert not Attention.check(JobFacts(habits={"operators": ["aten._softmax", "aten.bmm"]}))
