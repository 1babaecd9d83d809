"""Switches that models of transformers have themselves."""

import contextlib
import linecache
from typing import Any

from flatout.levers.hugging_face import pretrained
from flatout.levers.job import JobFacts, amdahl
from flatout.levers.lever import Call, Lever, Refused, Scene, Settings
from flatout.levers.places import users_frame

_WEIGHTS = "the script asks for attention weights, which fused kernels never have"
_DROPOUTS = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob", "attn_dropout")


class HfSwitches(Lever):
    """The switches of a Hugging Face model: fused attention where it computes it step by step, no cache.

    `set_attn_implementation("sdpa")` where a model that supports it runs with "eager"; `use_cache=False` for
    calls that train, which fill a cache that nobody reads. A script that names `past_key_values`, asks for
    tuples or passes `use_cache` keeps its cache; a call that asks for attention weights is made as written,
    since fused kernels never have them, and a script that trains with them keeps its attention. Dropout in
    attention draws other numbers of the same distribution; in the guard's runs it draws those of the script.
    """

    id = "hf-switches"
    title = "Hugging Face switches"
    safety = "numeric"
    reorders = True
    remakes = True
    # Around the compiler: arguments are changed before it sees them.
    layer = 35

    @classmethod
    def check(cls, job: JobFacts) -> str:
        """Needs a model of transformers that computes attention step by step, and need not."""
        attention = job.habit("hf_attention")
        if attention is None:
            return "the model is none of transformers"
        if attention != "eager":
            return f"the model's attention is {attention!r} already"
        if not job.habit("hf_supports_sdpa"):
            return "the model supports no other attention than 'eager'"
        return ""

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """As for attention by hand: writing and reading scores is a good part of what is not products."""
        shares = job.device_shares or job.host_shares
        model = sum(shares.get(part, 0.0) for part in ("forward", "backward"))
        return amdahl(max(0.0, model - (job.products_share(job.products_dtype) or 0.0)), 1.5)

    def __init__(self, scene: Scene, settings: Settings) -> None:
        super().__init__(scene, settings)
        self._found: list[tuple[Any, Any]] = []
        # By file of the script's: whether it names what a cache is for.
        self._reads_the_cache: dict[str, bool] = {}

    def apply(self) -> None:
        """Switch the attention of every model that can."""
        self._found = []
        models = pretrained(self.scene.roots())
        if not models:
            raise Refused("the model is none of transformers")
        for model in models:
            found = getattr(model.config, "_attn_implementation", None)
            if found != "eager" or not getattr(model, "_supports_sdpa", False):
                continue
            if getattr(model.config, "output_attentions", False):
                raise Refused(_WEIGHTS)
            model.set_attn_implementation("sdpa")
            # Of those that cannot be switched in place, transformers only says so in its log.
            if model.config._attn_implementation == "sdpa":  # noqa: SLF001
                self._found.append((model, found))
        if not self._found:
            raise Refused("the model's attention cannot be switched while it runs")

    def undo(self) -> None:
        """As it was."""
        for model, found in self._found:
            model.set_attn_implementation(found)
        self._found = []

    def around(self, root: Any, call: Call) -> Call:
        """Calls that train need no cache; weights of attention need attention as written."""
        model = next((one for one, _ in self._found if one is root), None)
        if model is None:
            return call
        draws = any(getattr(model.config, name, 0) or 0 for name in _DROPOUTS)

        def switched(*args: Any, **kwargs: Any) -> Any:
            trains = model.training and self.scene.torch.is_grad_enabled()
            if kwargs.get("output_attentions"):
                if trains:
                    self.useless = _WEIGHTS
                return self._without(call, args, kwargs)
            if trains and self._needs_no_cache(model, args, kwargs):
                kwargs["use_cache"] = False
            with self._as_written() if draws and self.scene.same_random else contextlib.nullcontext():
                return call(*args, **kwargs)

        return switched

    def _without(self, call: Call, args: Any, kwargs: Any) -> Any:
        """One call with the attention that was found."""
        for model, found in self._found:
            model.set_attn_implementation(found)
        try:
            return call(*args, **kwargs)
        finally:
            for model, _ in self._found:
                model.set_attn_implementation("sdpa")

    def _needs_no_cache(self, model: Any, args: Any, kwargs: Any) -> bool:
        config = model.config
        if (
            not getattr(config, "use_cache", False)
            or len(args) > 1
            or not getattr(config, "return_dict", True)
        ):
            return False
        if {"use_cache", "past_key_values", "return_dict"} & set(kwargs):
            return False
        frame = users_frame(self.scene.torch)
        if frame is None:
            return False
        path = frame.f_code.co_filename
        if path not in self._reads_the_cache:
            lines = linecache.getlines(path, frame.f_globals)
            self._reads_the_cache[path] = not lines or any("past_key_values" in line for line in lines)
        return not self._reads_the_cache[path]

    def _as_written(self) -> Any:
        """The plain kernel, whose dropout draws what one that is written out draws."""
        attention = self.scene.torch.nn.attention
        return attention.sdpa_kernel(attention.SDPBackend.MATH)
