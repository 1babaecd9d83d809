"""Activations computed again instead of kept, by the switch that models of transformers have."""

from typing import Any

from flatout.levers.hugging_face import pretrained, recompute, recomputes
from flatout.levers.job import JobFacts
from flatout.levers.lever import Lever, Refused, Settings

_INPUT_HOOKS = ("_require_grads_hook", "_require_grads_hooks")


class HfCheckpointing(Lever):
    """Gradient checkpointing of a Hugging Face model, by its own switch (`gradient_checkpointing_enable`).

    Each block keeps its input alone, and is computed once more in the backward pass: activations take a
    fraction of the memory, a step about a third more time. Random numbers are drawn again as they were. Only
    tried where the goal is less memory.
    """

    id = "hf-checkpointing"
    title = "Hugging Face checkpointing"
    safety = "memory"
    reorders = True
    remakes = True

    @classmethod
    def check(cls, job: JobFacts) -> str:
        """Needs a model of transformers that can, and does not yet."""
        known = job.habit("hf_checkpointing")
        if known is None:
            return "the model is none of transformers"
        if known["on"]:
            return "the script does it already"
        return "" if known["supported"] else "the model does not support it"

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """One more forward pass for each backward pass, which is twice as long."""
        return 0.75

    def apply(self) -> None:
        """On, for every model that can."""
        self._found: list[tuple[Any, bool]] = []
        for model in pretrained(self.scene.roots()):
            if not getattr(model, "supports_gradient_checkpointing", False):
                continue
            if not recomputes(model):
                self._found.append((model, any(name in vars(model) for name in _INPUT_HOOKS)))
                recompute(model, on=True)
        if not self._found:
            raise Refused("no model of transformers that could do it and does not")

    def undo(self) -> None:
        """Off; and the hooks that came with it go, unless they were there before."""
        for model, had_hooks in self._found:
            recompute(model, on=False)
            if not had_hooks and any(name in vars(model) for name in _INPUT_HOOKS):
                model.disable_input_require_grads()
                for name in _INPUT_HOOKS:
                    vars(model).pop(name, None)
        self._found = []
