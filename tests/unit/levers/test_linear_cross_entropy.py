"""The loss in chunks is the same for less memory, and only where the source proves that it may be."""

import linecache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flatout.levers import chunked_loss, linear_cross_entropy  # noqa: E402
from flatout.levers.bf16 import Bf16  # noqa: E402
from flatout.levers.compile import Compile  # noqa: E402
from flatout.levers.job import JobFacts  # noqa: E402
from flatout.levers.lever import Broken, Refused  # noqa: E402
from flatout.levers.linear_cross_entropy import LinearCrossEntropy  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
nn, F = torch.nn, torch.nn.functional
WIDTH, CLASSES, BATCH, LENGTH = 16, 97, 3, 11
REAL = F.cross_entropy


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(linear_cross_entropy, "LARGE_VOCABULARY", CLASSES)
    monkeypatch.setattr(chunked_loss, "_CHUNK", 7 * CLASSES)  # 33 tokens: five chunks, the last one smaller
    torch.manual_seed(0)
    yield
    assert F.cross_entropy is REAL


# The mathematics --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ignored", [0, 5, 30])
def test_loss_and_gradients_are_those_of_torch(ignored: int) -> None:
    x = torch.randn(33, WIDTH, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(CLASSES, WIDTH, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(CLASSES, (33,))
    targets[:ignored] = -1
    expected = F.cross_entropy(x @ weight.t(), targets, ignore_index=-1)
    found = chunked_loss.linear_cross_entropy(torch)(x, weight, targets, -1, torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for a, b in zip(
        torch.autograd.grad(3 * found, (x, weight)),
        torch.autograd.grad(3 * expected, (x, weight)),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_nothing_to_count_is_nan_as_in_torch() -> None:
    x, weight = torch.randn(4, WIDTH, requires_grad=True), torch.randn(CLASSES, WIDTH, requires_grad=True)
    targets = torch.full((4,), -100)
    assert chunked_loss.linear_cross_entropy(torch)(x, weight, targets, -100, torch.float32).isnan()
    assert F.cross_entropy(x @ weight.t(), targets).isnan()


def test_where_no_token_counts_gradients_are_nothing_as_in_torch() -> None:
    x, weight = torch.randn(4, WIDTH, requires_grad=True), torch.randn(CLASSES, WIDTH, requires_grad=True)
    targets = torch.full((4,), -100)
    loss = chunked_loss.linear_cross_entropy(torch)(x, weight, targets, -100, torch.float32)
    for gradient in torch.autograd.grad(loss, (x, weight)):
        assert torch.equal(gradient, torch.zeros_like(gradient))


def test_second_derivatives_are_refused_and_never_wrong() -> None:
    x, weight = torch.randn(4, WIDTH, requires_grad=True), torch.randn(CLASSES, WIDTH, requires_grad=True)
    loss = chunked_loss.linear_cross_entropy(torch)(x, weight, torch.zeros(4, dtype=int), -100, torch.float32)
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(loss, x, None, None, True)  # by name, this whole file would be refused


# Models and scripts -----------------------------------------------------------------------------------------


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(CLASSES, WIDTH)
        self.middle = nn.Linear(WIDTH, WIDTH)
        self.lm_head = nn.Linear(WIDTH, CLASSES, bias=False)
        self.lm_head.weight = self.tokens.weight
        self.vocabulary = CLASSES


class GivesLogits(Body):
    def forward(self, x: Any) -> Any:
        return self.lm_head(torch.tanh(self.middle(self.tokens(x))))


class GivesBoth(Body):
    """As nanoGPT does."""

    def forward(self, x: Any, targets: Any = None) -> Any:
        x = torch.tanh(self.middle(self.tokens(x)))
        if targets is not None:
            logits = self.lm_head(x)
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        else:
            logits = self.lm_head(x[:, [-1], :])
            loss = None
        return logits, loss

    def count(self) -> int:
        return self.lm_head.weight.numel()


class GivesBothOtherwise(Body):
    """As in a lecture."""

    def forward(self, x: Any, targets: Any = None) -> Any:
        logits = self.lm_head(torch.tanh(self.middle(self.tokens(x))))
        loss = None
        if targets is not None:
            B, T, C = logits.shape
            logits = logits.view(B * T, C)
            targets = targets.view(B * T)
            loss = F.cross_entropy(logits, targets, ignore_index=-1)
        return logits, loss


class WithItsVocabulary(Body):
    def forward(self, x: Any, targets: Any = None) -> Any:
        logits = self.lm_head(torch.tanh(self.middle(self.tokens(x))))
        loss = F.cross_entropy(logits.view(-1, self.vocabulary), targets.view(-1), ignore_index=-1)
        return logits, loss


class GivesTheLoss(Body):
    def __init__(self) -> None:
        super().__init__()
        self.criterion = nn.CrossEntropyLoss(ignore_index=-1)

    def forward(self, x: Any, targets: Any) -> Any:
        logits = self.lm_head(torch.tanh(self.middle(self.tokens(x))))
        return self.criterion(logits.transpose(1, 2), targets)


class Stage:
    """What levers see, without a session."""

    def __init__(self, root: Any, *on: Any) -> None:
        self.torch, self.device, self.same_random = torch, torch.device("cpu"), False
        self.roots = lambda: [root]
        self.levers = [kind(self, settings) for kind, settings in on]
        for lever in self.levers:
            lever.apply()
        call = root._call_impl
        for lever in sorted(self.levers, key=lambda one: one.layer):
            call = lever.around(root, call) if lever.layer else call
        root._compiled_call_impl = call
        self.root = root

    def is_on(self, name: str) -> Any:
        return next((lever for lever in self.levers if lever.id == name), None)

    def undo(self) -> None:
        self.root._compiled_call_impl = None
        for lever in self.levers:
            lever.undo()


def batch() -> tuple[Any, Any]:
    torch.manual_seed(4)
    x, y = torch.randint(CLASSES, (BATCH, LENGTH)), torch.randint(CLASSES, (BATCH, LENGTH))
    y[0, 3] = -1
    return x, y


def script_view(model: Any) -> Any:
    x, y = batch()
    logits = model(x)
    loss = F.cross_entropy(logits.view(-1, logits.size(-1)), y.view(-1), ignore_index=-1)
    loss.backward()
    return loss.detach()


def script_constant(model: Any) -> Any:
    x, y = batch()
    out = model(x)
    assert out.shape == (BATCH, LENGTH, CLASSES)
    loss = F.cross_entropy(out.reshape(-1, model.vocabulary), y.reshape(-1), ignore_index=-1)
    loss.backward()
    return loss.detach()


def script_transposed(model: Any) -> Any:
    x, y = batch()
    criterion = nn.CrossEntropyLoss(ignore_index=-1)
    loss = criterion(model(x).transpose(1, 2), y)
    loss.backward()
    return loss.detach()


def script_both(model: Any) -> Any:
    x, y = batch()
    _, loss = model(x, y)
    loss.backward()
    return loss.detach()


def script_second(model: Any) -> Any:
    x, y = batch()
    loss = model(x, y)[1]
    loss.backward()
    return loss.detach()


def script_loss(model: Any) -> Any:
    x, y = batch()
    loss = model(x, y)
    loss.backward()
    return loss.detach()


FORMS = [
    (GivesLogits, script_view),
    (GivesLogits, script_constant),
    (GivesLogits, script_transposed),
    (GivesBoth, script_both),
    (GivesBoth, script_second),
    (GivesBothOtherwise, script_both),
    (WithItsVocabulary, script_both),
    (GivesTheLoss, script_loss),
]


def trained(model: Any, script: Any) -> list[Any]:
    model.zero_grad()
    return [script(model), *(parameter.grad.clone() for parameter in model.parameters())]


def off(found: list[Any], expected: list[Any]) -> float:
    return max(
        float((a.double() - b.double()).norm() / b.double().norm())
        for a, b in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize(("kind", "script"), FORMS)
def test_the_same_loss_and_gradients_and_no_logits(kind: Any, script: Any) -> None:
    torch.manual_seed(1)
    model = kind().double()
    expected = trained(model, script)
    sizes: list[int] = []
    largest = BATCH * LENGTH * CLASSES

    def packed(tensor: Any) -> Any:
        sizes.append(tensor.untyped_storage().size() // tensor.element_size())
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(packed, lambda tensor: tensor)
    with hooks:
        trained(model, script)
    assert max(sizes) == largest
    stage = Stage(model, (LinearCrossEntropy, {}))
    sizes.clear()
    with hooks:
        found = trained(model, script)
    assert max(sizes) < largest
    assert off(found, expected) < 1e-12
    assert not stage.levers[0].useless
    assert "forward" not in vars(model.lm_head)
    stage.undo()
    assert off(trained(model, script), expected) == 0.0


@pytest.mark.parametrize(("kind", "script"), FORMS)
def test_within_autocast_of_ours_and_of_the_script(kind: Any, script: Any) -> None:
    torch.manual_seed(1)
    model = kind()
    expected = trained(model, script)

    def own(model: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return script(model)

    as_written = off(trained(model, own), expected)
    for levers, run in (((Bf16, {}), script), (None, own)):
        stage = Stage(model, (LinearCrossEntropy, {}), *([levers] if levers else []))
        found = trained(model, run)
        assert off(found, expected) < max(0.01, 2 * as_written)
        assert found[0].dtype == torch.float32
        stage.undo()


@pytest.mark.parametrize(
    ("kind", "script", "others"),
    [
        (*FORMS[0], ()),
        (*FORMS[3], (Bf16,)),
        (*FORMS[7], ()),
        *(
            pytest.param(*FORMS[form], others, marks=pytest.mark.full)
            for form, others in ((0, (Bf16,)), (3, ()), (7, (Bf16,)))
        ),
    ],
)
def test_under_the_compiler_in_one_graph(kind: Any, script: Any, others: Any) -> None:
    torch._dynamo.reset()
    torch.manual_seed(1)
    model = kind()
    expected = trained(model, script)
    stage = Stage(model, (LinearCrossEntropy, {}), (Compile, {}), *((one, {}) for one in others))
    stats = torch._dynamo.utils.counters["stats"]
    before = stats["unique_graphs"]
    for _ in range(3):
        found = trained(model, script)
        assert off(found, expected) < (0.02 if others else 1e-5)
    assert stats["unique_graphs"] == before + 1
    stage.undo()


class Made(torch.utils._python_dispatch.TorchDispatchMode):
    """How large is what operators give."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[int] = []

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operator(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.elements.append(result.untyped_storage().nbytes() // result.element_size())
        return result


def test_the_compiler_makes_no_gradient_of_logits_that_nobody_uses() -> None:
    torch._dynamo.reset()
    model = GivesBoth()
    for levers, has_logits in (((), True), ((LinearCrossEntropy,), False)):
        stage = Stage(model, *((one, {}) for one in (*levers, Compile)))
        trained(model, script_both)
        _, loss = model(*batch())
        with Made() as made:
            loss.backward()
        assert (BATCH * LENGTH * CLASSES in made.elements) is has_logits
        stage.undo()


def test_evaluation_and_other_losses_are_as_written() -> None:
    model = GivesBoth()
    x, y = batch()
    stage = Stage(model, (LinearCrossEntropy, {}))
    model._compiled_call_impl = None  # as the scene does for evaluation
    logits, _ = model(x, y)
    assert not logits.isnan().any()
    stage.undo()
    model = GivesLogits()
    stage = Stage(model, (LinearCrossEntropy, {}))
    other = torch.randn(5, CLASSES)
    assert F.cross_entropy(other, y[0, :5].clamp(min=0)) == REAL(other, y[0, :5].clamp(min=0))
    stage.undo()


def test_logits_that_nobody_was_to_use_are_nan() -> None:
    seen = []

    def noting(found: Any) -> Any:
        seen.append(found)
        return found

    model = GivesBoth()
    stage = Stage(model, (LinearCrossEntropy, {}))
    stage.levers[0]._places = NoDoubt()
    noting(model(*batch()))
    assert seen[0][0].isnan().all()
    assert seen[0][0].shape == (BATCH, LENGTH, CLASSES)
    assert seen[0][0].untyped_storage().size() == 4
    assert not seen[0][1].isnan()
    stage.undo()


def test_within_autocast_nobody_writes_them_down() -> None:
    model = GivesBoth()
    stage = Stage(model, (LinearCrossEntropy, {}), (Bf16, {}))
    stage.levers[0]._places = NoDoubt()
    found = model(*batch())
    assert found[0].untyped_storage().size() == 4
    assert found[0].dtype == torch.float32
    stage.undo()


class NoDoubt(dict):  # type: ignore[type-arg]
    """Places in the script that were all proven."""

    def __contains__(self, place: object) -> bool:
        return True

    def __getitem__(self, place: object) -> list[Any]:
        return []


def test_off_between_the_model_and_its_loss() -> None:
    """A script may call the model before it updates for the last batch: there a lever comes and goes."""
    model = GivesLogits().double()
    expected = trained(model, script_view)
    stage = Stage(model, (LinearCrossEntropy, {}))
    x, y = batch()
    model.zero_grad()
    logits = model(x)
    stage.undo()
    loss = F.cross_entropy(logits.view(-1, logits.size(-1)), y.view(-1), ignore_index=-1)
    loss.backward()
    found = [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]
    assert off(found, expected) < 1e-12
    assert F.cross_entropy is not REAL  # the same logits may be asked for once more
    del logits
    assert off(trained(model, script_view), expected) == 0.0
    assert F.cross_entropy is REAL


# What the script asks of the loss --------------------------------------------------------------------------


def script_smooth(model: Any) -> Any:
    x, y = batch()
    logits = model(x)
    loss = F.cross_entropy(logits.view(-1, CLASSES), y.view(-1), ignore_index=-1, label_smoothing=0.1)
    loss.backward()
    return loss.detach()


def script_sum(model: Any) -> Any:
    x, y = batch()
    logits = model(x)
    loss = F.cross_entropy(logits.transpose(1, 2), y, ignore_index=-1, reduction="sum")
    loss.backward()
    return loss.detach()


def script_weighted(model: Any) -> Any:
    x, y = batch()
    logits = model(x)
    loss = F.cross_entropy(
        logits.view(-1, CLASSES), y.view(-1), torch.arange(1.0, CLASSES + 1).double(), ignore_index=-1
    )
    loss.backward()
    return loss.detach()


@pytest.mark.parametrize("script", [script_smooth, script_sum, script_weighted])
def test_another_loss_gets_the_real_logits_and_the_lever_goes(script: Any) -> None:
    model = GivesLogits().double()
    expected = trained(model, script)
    stage = Stage(model, (LinearCrossEntropy, {}))
    assert off(trained(model, script), expected) < 1e-12
    assert "no plain mean" in stage.levers[0].useless
    stage.undo()


# Refusals ---------------------------------------------------------------------------------------------------


class Scales(Body):
    def forward(self, x: Any) -> Any:
        logits = self.lm_head(self.tokens(x))
        return 30 * torch.tanh(logits / 30)


class AddsInPlace(Body):
    def forward(self, x: Any) -> Any:
        logits = self.lm_head(self.tokens(x))
        logits += 1
        return logits


class Keeps(Body):
    def forward(self, x: Any) -> Any:
        logits = self.lm_head(self.tokens(x))
        self.last = logits
        return logits


class Regularizes(Body):
    def forward(self, x: Any, targets: Any) -> Any:
        logits = self.lm_head(self.tokens(x))
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss + logits.logsumexp(-1).mean()


class Smooths(Body):
    def forward(self, x: Any, targets: Any) -> Any:
        logits = self.lm_head(self.tokens(x))
        return logits, F.cross_entropy(logits.view(-1, CLASSES), targets.view(-1), label_smoothing=0.1)


class MayGiveFeatures(Body):
    def forward(self, x: Any, features: bool = False) -> Any:
        x = self.tokens(x)
        if features:
            return x
        return self.lm_head(x)


class UsesItTwice(Body):
    def forward(self, x: Any) -> Any:
        return self.lm_head(self.tokens(x)) + self.extra(x)

    def extra(self, x: Any) -> Any:
        return self.lm_head(self.tokens(x))


class ByMethod(Body):
    def forward(self, x: Any) -> Any:
        return self.lm_head(self.tokens(x) + self.extra(x))

    def extra(self, x: Any) -> Any:
        return self.lm_head(self.tokens(x)).mean(-1, keepdim=True)


class ByName(Body):
    def forward(self, x: Any) -> Any:
        return self.lm_head(self.tokens(x) + self.extra(x))

    def extra(self, x: Any) -> Any:
        return getattr(self, "lm_head")(self.tokens(x)).mean(-1, keepdim=True)  # noqa: B009


class Elsewhere(Body):
    def forward(self, x: Any) -> Any:
        return self._logits(x)

    def _logits(self, x: Any) -> Any:
        return self.lm_head(self.tokens(x))


class Twice(GivesLogits):
    def __init__(self) -> None:
        super().__init__()
        self.other = self.lm_head


class Hidden(GivesLogits):
    def __init__(self) -> None:
        super().__init__()
        self.all = [self.lm_head]


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Scales, "go elsewhere"),
        (AddsInPlace, "go elsewhere"),
        (Keeps, "go elsewhere"),
        (Regularizes, "go elsewhere"),
        (Smooths, "label_smoothing"),
        (MayGiveFeatures, "more than its logits"),
        (UsesItTwice, "too"),
        (ByMethod, "too"),
        (ByName, "in a string"),
        (Elsewhere, "not call its head itself"),
        (Twice, "several places"),
        (Hidden, "another name"),
    ],
)
def test_a_model_that_may_do_more_with_its_logits_is_left_alone(kind: Any, says: str) -> None:
    with pytest.raises(Refused, match=says):
        Stage(kind(), (LinearCrossEntropy, {}))


def test_hooks_and_replaced_forwards_are_left_alone() -> None:
    model = GivesLogits()
    handle = model.register_forward_hook(lambda *_: None)
    with pytest.raises(Refused, match="hook"):
        Stage(model, (LinearCrossEntropy, {}))
    handle.remove()
    handle = model.lm_head.register_forward_hook(lambda *_: None)
    with pytest.raises(Refused, match="hangs on"):
        Stage(model, (LinearCrossEntropy, {}))
    handle.remove()
    model.forward = lambda x: x
    with pytest.raises(Refused, match="replaced"):
        Stage(model, (LinearCrossEntropy, {}))
    model = GivesLogits()
    model.lm_head.weight.requires_grad_(False)
    with pytest.raises(Refused, match="not trained"):
        Stage(model, (LinearCrossEntropy, {}))
    with pytest.raises(Refused, match="no linear layers"):
        Stage(nn.Linear(4, CLASSES), (LinearCrossEntropy, {}))


def script_accuracy(model: Any) -> Any:
    x, y = batch()
    logits = model(x)
    loss = F.cross_entropy(logits.view(-1, logits.size(-1)), y.view(-1), ignore_index=-1)
    return loss, (logits.argmax(-1) == y).float().mean()


def script_shifted(model: Any) -> Any:
    x, y = batch()
    logits = model(x)
    return F.cross_entropy(logits[:, :-1].reshape(-1, CLASSES), y[:, 1:].reshape(-1), ignore_index=-1)


def script_contiguous(model: Any) -> Any:
    x, y = batch()
    logits = model(x)
    return F.cross_entropy(logits.contiguous().view(-1, CLASSES), y.view(-1), ignore_index=-1)


def script_uses_logits(model: Any) -> Any:
    x, y = batch()
    logits, loss = model(x, y)
    return loss, logits.argmax(-1)


def script_keeps_all(model: Any) -> Any:
    return model(*batch())


@pytest.mark.parametrize("script", [script_accuracy, script_shifted, script_contiguous])
def test_a_script_that_may_do_more_with_its_logits_is_left_alone(script: Any) -> None:
    stage = Stage(GivesLogits(), (LinearCrossEntropy, {}))
    with pytest.raises(Broken, match="does not show"):
        script(stage.root)
    stage.undo()


@pytest.mark.parametrize("script", [script_uses_logits, script_keeps_all])
def test_a_caller_that_may_use_the_logits_is_left_alone(script: Any) -> None:
    stage = Stage(GivesBoth(), (LinearCrossEntropy, {}))
    with pytest.raises(Broken, match="may use the logits"):
        script(stage.root)
    assert "forward" not in vars(stage.root.lm_head)
    stage.undo()


def test_a_script_that_differentiates_twice_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "penalty.py"
    path.write_text(
        "import torch.nn.functional as F\n"
        "def script(model, x, y):\n"
        "    logits = model(x)\n"
        "    loss = F.cross_entropy(logits.view(-1, logits.size(-1)), y.view(-1), ignore_index=-1)\n"
        "    loss.backward(create_graph=True)\n"
    )
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    stage = Stage(GivesLogits(), (LinearCrossEntropy, {}))
    with pytest.raises(Broken, match="does not show"):
        names["script"](stage.root, *batch())
    stage.undo()


# A script without functions: what lies in the file beside it, and whether that may see its logits.
WHOLE = """
from torch.nn import functional as F
{before}
logits = model(x)
loss = F.cross_entropy(logits.view(-1, logits.size(-1)), y.view(-1), ignore_index=-1)
loss.backward()
{after}
"""
NEAR = {
    "nothing": ("", ""),
    "a function with logits of its own": ("def f(logits):\n    return logits.argmax(-1)", ""),
    "another one": ("def f(model, x):\n    logits = model(x)\n    return logits.argmax(-1)", ""),
    "all names before they are there": ("keys = list(globals())", ""),
}
SEEN = {
    "by a function": ("def f():\n    return logits.argmax(-1)", ""),
    "afterwards": ("", "print(logits.sum())"),
    "among all names": ("", "names = globals()"),
    "among all names, in a function": ("def f():\n    return globals()", ""),
    "by a function that shares it": ("def f():\n    global logits\n    logits = logits + 1", ""),
}


def ran(folder: Path, before: str, after: str) -> bool:
    """Whether the loss was computed in chunks, and the script came to its end."""
    path = folder / "whole.py"
    path.write_text(WHOLE.format(before=before, after=after))
    linecache.checkcache()
    stage = Stage(GivesLogits(), (LinearCrossEntropy, {}))
    x, y = batch()
    names = {"model": stage.root, "x": x, "y": y}
    try:
        exec(compile(path.read_text(), str(path), "exec"), names)
        return not stage.levers[0].useless
    finally:
        names.clear()
        stage.undo()


@pytest.mark.parametrize("case", NEAR)
def test_a_script_without_functions(case: str, tmp_path: Path) -> None:
    assert ran(tmp_path, *NEAR[case])


@pytest.mark.parametrize("case", SEEN)
def test_a_script_without_functions_whose_logits_are_seen(case: str, tmp_path: Path) -> None:
    with pytest.raises(Broken, match="does not show"):
        ran(tmp_path, *SEEN[case])


def test_logits_in_one_chunk_are_not_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_loss, "_CHUNK", 1000 * CLASSES)
    stage = Stage(GivesLogits(), (LinearCrossEntropy, {}))
    script_view(stage.root)
    assert stage.levers[0].useless == "the logits of 33 tokens are one chunk"
    stage.undo()


def test_what_the_baseline_tells() -> None:
    many = {"vocabulary": 50257}
    assert not LinearCrossEntropy.check(JobFacts(habits=many))
    assert LinearCrossEntropy.predict(JobFacts(habits=many), {}) > 1.005
    assert "no linear layer" in LinearCrossEntropy.check(JobFacts(habits={"vocabulary": 10}))
    assert "no linear layer" in LinearCrossEntropy.check(JobFacts())
    assert "compiles itself" in LinearCrossEntropy.check(JobFacts(habits={**many, "compiles": True}))
    assert "infers" in LinearCrossEntropy.check(JobFacts(habits={**many, "infers": True}))
    assert LinearCrossEntropy.is_for_memory(JobFacts(device="cpu", habits=many))
    assert not LinearCrossEntropy.is_for_memory(JobFacts(device="cuda:0", habits=many))
    assert "several processes" in LinearCrossEntropy.check(JobFacts(habits=many, ranks=2))
