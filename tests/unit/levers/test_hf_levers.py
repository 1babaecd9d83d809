"""Models of transformers are switched by their own switches, and back; others are left alone."""

import importlib.machinery
import linecache
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flatout.levers import hugging_face  # noqa: E402
from flatout.levers.hf_checkpointing import HfCheckpointing  # noqa: E402
from flatout.levers.hf_switches import HfSwitches  # noqa: E402
from flatout.levers.job import JobFacts  # noqa: E402
from flatout.levers.lever import Refused  # noqa: E402
from flatout.levers.liger import Liger  # noqa: E402

nn = torch.nn


class PreTrainedModel(nn.Module):
    """What levers look at, without transformers."""

    __module__ = "transformers.modeling_utils"
    _supports_sdpa = True
    supports_gradient_checkpointing = True
    switches = True

    def __init__(self, attention: str = "eager", **config: Any) -> None:
        super().__init__()
        self.config = SimpleNamespace(
            _attn_implementation=attention, use_cache=True, return_dict=True, model_type="fake", **config
        )
        self.is_gradient_checkpointing = False
        self.called: list[dict[str, Any]] = []

    def set_attn_implementation(self, name: str) -> None:
        if self.switches:
            self.config._attn_implementation = name

    def gradient_checkpointing_enable(self) -> None:
        self.is_gradient_checkpointing = True
        self._require_grads_hooks = ["hook"]

    def gradient_checkpointing_disable(self) -> None:
        self.is_gradient_checkpointing = False

    def disable_input_require_grads(self) -> None:
        self._require_grads_hooks.clear()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        math, attention = not torch.backends.cuda.flash_sdp_enabled(), self.config._attn_implementation
        self.called.append({**kwargs, "math": math, "attention": attention})
        return args


class Fake(PreTrainedModel):
    __module__ = "script"


def scene(*roots: Any, same_random: bool = False) -> Any:
    return SimpleNamespace(torch=torch, roots=lambda: list(roots), same_random=same_random)


def test_attention_is_switched_and_put_back() -> None:
    model = Fake()
    lever = HfSwitches(scene(model), {})
    lever.apply()
    assert model.config._attn_implementation == "sdpa"
    lever.undo()
    assert model.config._attn_implementation == "eager"
    assert model.config.use_cache


def script(folder: Path, line: str) -> Any:
    """A function of a file of its own, whose source is read."""
    path = folder / "script.py"
    path.write_text(f"def script(call):\n    return {line}\n")
    linecache.checkcache()
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    return names["script"]


def test_calls_that_train_fill_no_cache(tmp_path: Path) -> None:
    model = Fake()
    lever = HfSwitches(scene(model), {})
    lever.apply()
    calls = "call(1, labels=2), call(1, use_cache=True), call(1, return_dict=False), call(1, 2)"
    script(tmp_path, calls)(lever.around(model, model.forward))
    assert [one.get("use_cache") for one in model.called] == [False, True, None, None]
    assert model.config.use_cache
    other = nn.Linear(1, 1)
    assert lever.around(other, other.forward) == other.forward


def test_a_script_that_reads_the_cache_keeps_it(tmp_path: Path) -> None:
    model = Fake()
    lever = HfSwitches(scene(model), {})
    lever.apply()
    with pytest.raises(AttributeError):
        script(tmp_path, "call(1).past_key_values")(lever.around(model, model.forward))
    assert "use_cache" not in model.called[0]


def test_a_script_that_wants_attention_weights_gets_them() -> None:
    model = Fake()
    lever = HfSwitches(scene(model), {})
    lever.apply()
    call = lever.around(model, model.forward)
    model.eval()
    call(1, output_attentions=True)
    assert not lever.useless
    model.train()
    call(1, output_attentions=True)
    call(1)
    assert [one["attention"] for one in model.called] == ["eager", "eager", "sdpa"]
    assert "attention weights" in lever.useless
    with pytest.raises(Refused, match="attention weights"):
        HfSwitches(scene(Fake(output_attentions=True)), {}).apply()


@pytest.mark.parametrize(
    ("dropout", "same", "math"), [(0.1, True, True), (0.0, True, False), (0.1, False, False)]
)
def test_in_guard_runs_dropout_draws_as_written(dropout: float, same: bool, math: bool) -> None:
    model = Fake(attn_pdrop=dropout)
    lever = HfSwitches(scene(model, same_random=same), {})
    lever.apply()
    lever.around(model, model.forward)(1)
    assert model.called[0]["math"] == math
    assert torch.backends.cuda.flash_sdp_enabled()


def test_what_cannot_be_switched_is_refused() -> None:
    with pytest.raises(Refused, match="none of transformers"):
        HfSwitches(scene(nn.Linear(1, 1)), {}).apply()
    model = Fake()
    model.switches = False
    with pytest.raises(Refused, match="while it runs"):
        HfSwitches(scene(model), {}).apply()


def test_checkpointing_goes_with_the_hooks_that_came() -> None:
    model = Fake()
    lever = HfCheckpointing(scene(model), {})
    lever.apply()
    assert model.is_gradient_checkpointing
    lever.undo()
    assert not model.is_gradient_checkpointing
    assert "_require_grads_hooks" not in vars(model)
    model.is_gradient_checkpointing = True
    with pytest.raises(Refused, match="could do it"):
        lever.apply()


@pytest.mark.parametrize(
    ("kind", "habits", "says"),
    [
        (HfSwitches, {}, "none of transformers"),
        (HfSwitches, {"hf_attention": "sdpa"}, "'sdpa' already"),
        (HfSwitches, {"hf_attention": "eager"}, "no other"),
        (HfSwitches, {"hf_attention": "eager", "hf_supports_sdpa": True}, ""),
        (HfCheckpointing, {}, "none of transformers"),
        (HfCheckpointing, {"hf_checkpointing": {"supported": True, "on": True}}, "already"),
        (HfCheckpointing, {"hf_checkpointing": {"supported": False, "on": False}}, "does not support"),
        (HfCheckpointing, {"hf_checkpointing": {"supported": True, "on": False}}, ""),
    ],
)
def test_refusals_say_why(kind: Any, habits: dict[str, Any], says: str) -> None:
    reason = kind.check(JobFacts(habits=habits))
    assert (says in reason) if says else not reason


def test_what_is_known_of_a_model() -> None:
    nothing = hugging_face.describe([nn.Linear(1, 1)])
    assert nothing["hf_attention"] is None
    assert nothing["hf_checkpointing"] is None
    wrapped = nn.Module()
    wrapped.module = Fake()
    for roots in ([Fake()], [wrapped]):
        known = hugging_face.describe(roots)
        assert known["hf_attention"] == "eager"
        assert known["hf_supports_sdpa"]
        assert known["hf_model_type"] == "fake"
        assert known["hf_checkpointing"] == {"supported": True, "on": False}


# Liger ------------------------------------------------------------------------------------------------------


def kernels_for(monkeypatch: pytest.MonkeyPatch, patch: Any) -> None:
    """A package that patches as liger-kernel does."""
    patching = SimpleNamespace(
        MODEL_TYPE_TO_APPLY_LIGER_FN={"fake": None}, _apply_liger_kernel_to_instance=patch
    )
    for name in ("liger_kernel", "liger_kernel.transformers"):
        module = ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers.monkey_patch", patching)


def on_cuda(model: Any) -> Any:
    return SimpleNamespace(torch=torch, roots=lambda: [model], device=torch.device("cuda"))


def test_what_liger_replaced_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    source = ModuleType("transformers.fake")
    monkeypatch.setitem(sys.modules, "transformers.fake", source)

    class Norm(nn.Module):
        __module__ = "transformers.fake"

        def forward(self) -> str:
            return "torch"

    source.Norm, source.rotate = Norm, "torch"  # type: ignore[attr-defined]
    model = Fake()
    model.norm = Norm()
    options: dict[str, Any] = {}

    def patch(model: Any, **given: Any) -> None:
        options.update(given)
        source.rotate, source.Norm = "liger", "another"  # type: ignore[attr-defined]
        model.norm.__dict__["forward"] = lambda: "liger"
        model.norm.offset = 1.0
        Norm.extra = "liger"

    kernels_for(monkeypatch, patch)
    before = dict(vars(model.norm))
    lever = Liger(on_cuda(model), {})
    lever.apply()
    assert model.norm() == "liger"
    assert options == {"cross_entropy": False, "fused_linear_cross_entropy": False}
    model.norm.theirs = 3
    lever.undo()
    assert model.norm() == "torch"
    assert vars(model.norm) == {**before, "theirs": 3}
    assert (source.rotate, source.Norm) == ("torch", Norm)  # type: ignore[attr-defined]
    assert not hasattr(Norm, "extra")


def test_a_patch_that_fails_half_way_can_be_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def patch(model: Any, **_: Any) -> None:
        model.__dict__["forward"] = None
        raise ValueError("half way")

    kernels_for(monkeypatch, patch)
    model = Fake()
    lever = Liger(on_cuda(model), {})
    with pytest.raises(ValueError, match="half way"):
        lever.apply()
    assert "forward" not in vars(model)


def test_liger_is_refused_where_it_is_missing_or_of_no_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="not train on a GPU"):
        Liger(SimpleNamespace(device=torch.device("cpu")), {}).apply()  # type: ignore[arg-type]
    kernels_for(monkeypatch, lambda **_: None)
    with pytest.raises(Refused, match="changed nothing"):
        Liger(on_cuda(Fake()), {}).apply()
    with pytest.raises(Refused, match="no kernels for this model"):
        Liger(on_cuda(nn.Linear(1, 1)), {}).apply()
    gpu: dict[str, Any] = {"device": "cuda:0"}
    llama = {"hf_model_type": "llama", "packages": {"liger_kernel": "0.8"}}
    assert not Liger.check(JobFacts(habits=llama, **gpu))
    assert "GPU" in Liger.check(JobFacts(habits=llama))
    assert "pip install" in Liger.check(JobFacts(habits={"hf_model_type": "llama"}, **gpu))
    assert "gpt2" in Liger.check(JobFacts(habits={"hf_model_type": "gpt2"}, **gpu))
    assert "none of" in Liger.check(JobFacts(**gpu))
    assert "compiles itself" in Liger.check(JobFacts(habits={**llama, "compiles": True}, **gpu))


# With transformers ------------------------------------------------------------------------------------------


def tiny(name: str) -> Any:
    transformers = pytest.importorskip("transformers")
    sizes: dict[str, dict[str, Any]] = {
        "GPT2": {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 32, "vocab_size": 101},
        "Llama": {
            "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 32, "intermediate_size": 64,
            "vocab_size": 101,
        },
    }  # fmt: skip
    config = getattr(transformers, f"{name}Config")(**sizes[name], attn_implementation="eager")
    torch.manual_seed(0)
    kind = {"GPT2": "GPT2LMHeadModel", "Llama": "LlamaForCausalLM"}[name]
    return getattr(transformers, kind)(config).train()


def trained(model: Any, call: Any) -> tuple[Any, list[Any]]:
    model.zero_grad()
    torch.manual_seed(1)
    tokens = torch.randint(101, (2, 16))
    out = call(tokens, labels=tokens)
    out.loss.backward()
    return out.loss.detach(), [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["GPT2", "Llama"])
@pytest.mark.parametrize("kind", [HfSwitches, HfCheckpointing])
def test_a_real_model_gives_the_same_and_is_put_back(name: str, kind: Any) -> None:
    model = tiny(name)
    before = set(vars(model)), model.config.to_dict(), len(model.get_input_embeddings()._forward_hooks)
    loss, gradients = trained(model, model)
    lever = kind(scene(model, same_random=True), {})
    lever.apply()
    if kind is HfSwitches:
        assert model.config._attn_implementation == "sdpa"
    else:
        assert hugging_face.recomputes(model)
    found, others = trained(model, lever.around(model, model))
    torch.testing.assert_close(found, loss, rtol=1e-5, atol=1e-6)
    for a, b in zip(others, gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    lever.undo()
    after = set(vars(model)), model.config.to_dict(), len(model.get_input_embeddings()._forward_hooks)
    assert after == before
    assert not hugging_face.recomputes(model)
    again, _ = trained(model, model)
    assert torch.equal(again, loss)


def test_of_a_switch_with_two_names_the_newer_is_used() -> None:
    class Renamed(PreTrainedModel):
        """As transformers is from 5.2x on: old names warn whoever uses them."""

        is_activation_checkpointing = False

        def activation_checkpointing_enable(self) -> None:
            self.is_activation_checkpointing = True

        def activation_checkpointing_disable(self) -> None:
            self.is_activation_checkpointing = False

        def gradient_checkpointing_enable(self) -> None:
            raise FutureWarning("deprecated")

        gradient_checkpointing_disable = gradient_checkpointing_enable

    model = Renamed()
    lever = HfCheckpointing(scene(model), {})
    lever.apply()
    assert (model.is_activation_checkpointing, model.is_gradient_checkpointing) == (True, False)
    assert hugging_face.describe([model])["hf_checkpointing"]["on"] is True
    lever.undo()
    assert hugging_face.describe([model])["hf_checkpointing"]["on"] is False


def test_a_real_model_is_known_and_nobody_is_warned() -> None:
    model = tiny("Llama")
    assert hugging_face.describe([model]) == {
        "hf_attention": "eager",
        "hf_supports_sdpa": True,
        "hf_model_type": "llama",
        "hf_checkpointing": {"supported": True, "on": False},
    }
