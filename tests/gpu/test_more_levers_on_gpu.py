"""More levers on a real GPU: losses in chunks and budgets take less memory, and the numbers stay."""

import gc
import os
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from flatout.levers import numa
from flatout.levers.activation_budget import ActivationBudget
from flatout.levers.bf16 import Bf16
from flatout.levers.chunked_loss import linear_cross_entropy
from flatout.levers.compile import Compile
from flatout.levers.hf_checkpointing import HfCheckpointing
from flatout.levers.hf_switches import HfSwitches
from flatout.levers.lever import Refused
from flatout.levers.liger import Liger
from flatout.levers.linear_cross_entropy import LinearCrossEntropy
from flatout.levers.thread_affinity import ThreadAffinity

WIDTH, CLASSES, LENGTH, BATCH = 512, 50257, 1024, 8


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(CLASSES, WIDTH)
        self.middle = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(4)))
        self.norm = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, CLASSES, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.lm_head.weight = self.tokens.weight


class GivesLogits(Body):
    def forward(self, x: Any) -> Any:
        return self.lm_head(self.norm(self.middle(self.tokens(x))))


class GivesBoth(Body):
    def forward(self, x: Any, targets: Any = None) -> Any:
        logits = self.lm_head(self.norm(self.middle(self.tokens(x))))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return logits, loss


class Stage:
    """What levers see, without a session."""

    def __init__(self, root: Any, *on: Any, same_random: bool = False) -> None:
        self.torch, self.device, self.same_random = torch, torch.device("cuda", 0), same_random
        self.root, self.roots = root, lambda: [root]
        self.notes: list[str] = []
        self.levers = [kind(self, settings) for kind, settings in on]
        for lever in self.levers:
            lever.apply()
        call = root._call_impl
        for lever in sorted(self.levers, key=lambda one: one.layer):
            call = lever.around(root, call) if lever.layer else call
        root._compiled_call_impl = call

    def note(self, lever: str, text: str) -> None:
        self.notes.append(f"{lever}: {text}")

    def is_on(self, name: str) -> Any:
        return next((lever for lever in self.levers if lever.id == name), None)

    def undo(self) -> None:
        self.root._compiled_call_impl = None
        for lever in reversed(self.levers):
            lever.undo()


@pytest.fixture(autouse=True)
def from_nothing() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def batch() -> tuple[Any, Any]:
    torch.manual_seed(4)
    x = torch.randint(CLASSES, (BATCH, LENGTH), device="cuda")
    y = torch.randint(CLASSES, (BATCH, LENGTH), device="cuda")
    y[0, :9] = -1
    return x, y


def script_logits(model: Any) -> Any:
    x, y = batch()
    logits = model(x)
    loss = F.cross_entropy(logits.view(-1, logits.size(-1)), y.view(-1), ignore_index=-1)
    loss.backward()
    return loss.detach()


def script_both(model: Any) -> Any:
    x, y = batch()
    _, loss = model(x, y)
    loss.backward()
    return loss.detach()


FORMS = [(GivesLogits, script_logits), (GivesBoth, script_both)]


def trained(model: Any, script: Any, *, graphs: bool = False) -> tuple[list[Any], int]:
    """Loss and gradients, and the peak. What a CUDA graph uses on the way is reserved for it, and no more."""
    model.zero_grad()
    torch.cuda.synchronize()
    if graphs:
        gc.collect()
        torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    loss = script(model)
    peak = torch.cuda.max_memory_reserved() if graphs else torch.cuda.max_memory_allocated()
    return [loss, *(parameter.grad.float().clone() for parameter in model.parameters())], peak


def off(found: list[Any], expected: list[Any]) -> float:
    return max(float((a - b).norm() / (b.norm() + 1e-12)) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(("kind", "script"), FORMS)
@pytest.mark.parametrize(
    "others",
    [
        (),
        ((Bf16, {}),),
        ((Bf16, {}), (Compile, {"mode": "default"})),
        ((Bf16, {}), (Compile, {"mode": "reduce-overhead"})),
    ],
)
def test_a_loss_in_chunks_is_the_same_for_less_memory(kind: Any, script: Any, others: Any) -> None:
    graphs = (Compile, {"mode": "reduce-overhead"}) in others
    model = kind().cuda()
    expected, _ = trained(model, script)
    stage = Stage(model, *others)
    for _ in range(6):
        plain, peak = trained(model, script, graphs=graphs)
    assert stage.notes == []
    stage.undo()
    torch._dynamo.reset()
    stage = Stage(model, (LinearCrossEntropy, {}), *others)
    for _ in range(6):
        found, less = trained(model, script, graphs=graphs)
    assert off(found, expected) < max(1e-4, 1.5 * off(plain, expected))
    assert not any(lever.useless for lever in stage.levers)
    assert stage.notes == []
    # What graphs keep for a model of this size is much beside the logits.
    assert less < (0.9 if graphs else 0.75) * peak
    stage.undo()
    assert off(trained(model, script)[0], expected) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "classes"), [(300, 50257), (6000, 50257), (77, 8192)])
def test_the_kernel_gives_the_loss_and_gradients_of_torch(dtype: Any, tokens: int, classes: int) -> None:
    x = torch.randn(tokens, 256, device="cuda", requires_grad=True)
    weight = torch.randn(classes, 256, device="cuda").mul_(0.1).requires_grad_()
    targets = torch.randint(classes, (tokens,), device="cuda")
    targets[5:9] = -1
    low, factor = x.to(dtype).double(), weight.to(dtype).double()
    expected = F.cross_entropy(low @ factor.t(), targets, ignore_index=-1)
    found = linear_cross_entropy(torch)(x, weight, targets, -1, dtype)
    assert off([found.double()], [expected]) < (1e-6 if dtype is torch.float32 else 1e-3)
    wanted = torch.autograd.grad(expected, (x, weight))
    for one, other in zip(torch.autograd.grad(found, (x, weight)), wanted, strict=True):
        assert off([one], [other]) < (1e-4 if dtype is torch.float32 else 1e-2)


def test_a_target_that_is_no_class_is_no_loss() -> None:
    x, weight = torch.randn(9, 64, device="cuda"), torch.randn(9000, 64, device="cuda")
    targets = torch.full((9,), 9000, device="cuda")
    assert linear_cross_entropy(torch)(x, weight, targets, -100, torch.float32).isnan()


@pytest.mark.parametrize("mode", ["max-autotune-no-cudagraphs", "max-autotune"])
def test_autotuned_kernels_compute_the_same(mode: str) -> None:
    model = nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024)).cuda()
    x = torch.randn(512, 1024, device="cuda")

    def script(model: Any) -> Any:
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    expected, _ = trained(model, script)
    stage = Stage(model, (Compile, {"mode": mode}))
    for _ in range(6):
        found, _ = trained(model, script)
    assert off(found, expected) < 1e-3
    stage.undo()


def test_a_budget_lowers_the_peak_of_compiled_code() -> None:
    layers = [layer for _ in range(12) for layer in (nn.Linear(1024, 1024), nn.GELU())]
    model, x = nn.Sequential(*layers).cuda(), torch.randn(32768, 1024, device="cuda")

    def script(model: Any) -> Any:
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    peaks, results = [], []
    for budget in ([], [(ActivationBudget, {"budget": 0.2})]):
        torch._dynamo.reset()
        stage = Stage(model, *budget, (Compile, {"mode": "default"}))
        for _ in range(3):
            found, peak = trained(model, script)
        peaks.append(peak)
        results.append(found)
        stage.undo()
    assert peaks[1] < 0.8 * peaks[0]
    assert off(results[1], results[0]) < 1e-3


def llama() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        num_hidden_layers=4, num_attention_heads=8, hidden_size=512, intermediate_size=1024, vocab_size=1000,
        attn_implementation="eager",
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).cuda().train()


def script_labels(model: Any) -> Any:
    torch.manual_seed(3)
    tokens = torch.randint(1000, (4, 512), device="cuda")
    loss = model(tokens, labels=tokens).loss
    loss.backward()
    return loss.detach()


@pytest.mark.parametrize(("kind", "share"), [(HfSwitches, 0.95), (HfCheckpointing, 0.8), (Liger, 1.1)])
def test_switches_of_a_transformers_model(kind: Any, share: float) -> None:
    model = llama()
    if kind is Liger:
        pytest.importorskip("liger_kernel")
    expected, peak = trained(model, script_labels)
    stage = Stage(model, (kind, {}))
    found, less = trained(model, script_labels)
    assert off(found, expected) < 1e-3
    assert less < share * peak
    stage.undo()
    assert off(trained(model, script_labels)[0], expected) < 1e-5


def test_the_gpus_own_node_is_found_or_refused_in_words() -> None:
    known = numa.describe(torch, torch.device("cuda", 0))
    assert known is not None
    lever = ThreadAffinity(Stage(nn.Linear(1, 1).cuda()), {})  # type: ignore[arg-type]
    before = os.sched_getaffinity(0)
    if known["nodes"] < 2 or known["of_gpu"] is None or known["allowed"] < known["cores"]:
        with pytest.raises(Refused, match=r"node|cores"):
            lever.apply()
    else:
        lever.apply()
        assert os.sched_getaffinity(0) == numa.nodes()[known["of_gpu"]]
        lever.undo()
    assert os.sched_getaffinity(0) == before
