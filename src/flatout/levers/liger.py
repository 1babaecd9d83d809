"""Kernels of liger-kernel in models of transformers."""

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from typing import Any

from flatout.levers.hugging_face import pretrained
from flatout.levers.job import JobFacts, amdahl
from flatout.levers.lever import Lever, Refused, Settings

MISSING = "liger-kernel is not installed: pip install 'flatout[liger]'"
_NO_GPU = "the job does not train on a GPU"
# Those that it has known for long; whether the installed one does is asked when it is applied.
_KNOWN = (
    "gemma", "gemma2", "gemma3_text", "glm4", "granite", "llama", "mistral", "mixtral", "olmo2", "phi3",
    "qwen2", "qwen3", "qwen3_moe",
)  # fmt: skip
# Its losses return no logits, which a script may ask for.
_OPTIONS = {"cross_entropy": False, "fused_linear_cross_entropy": False}
_GONE = object()


class Liger(Lever):
    """Norms, rotary embeddings and gated layers of a Hugging Face model as Triton kernels of liger-kernel.

    Each reads and writes its tensors once, where torch does so for every operation; torch.compile fuses much
    of the same, and of the two the faster stays. Its fused loss is left out: a model under it returns no
    logits. For the models that liger-kernel knows, on CUDA alone, and only where it is installed
    (`pip install 'flatout[liger]'`). To take it back is to put back whatever it replaced: in modules, in
    classes and in the model's source file.
    """

    id = "liger"
    title = "Liger kernels"
    safety = "numeric"
    reorders = True
    remakes = True
    # Below the compiler, and nothing of its own: what was compiled without its kernels must not be called.
    layer = 1

    @classmethod
    def check(cls, job: JobFacts) -> str:
        """Needs the package, a GPU, and a model that it knows."""
        if not job.on_gpu:
            return _NO_GPU
        model = job.habit("hf_model_type")
        if model is None:
            return "the model is none of transformers"
        if model not in _KNOWN:
            return f"liger-kernel has no kernels for {model}"
        if "liger_kernel" not in job.habit("packages", {}):
            return MISSING
        return "the script compiles itself" if job.habit("compiles") else ""

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """A quarter of what is not products goes away."""
        shares = job.device_shares or job.host_shares
        model = sum(shares.get(part, 0.0) for part in ("forward", "backward"))
        return amdahl(max(0.0, model - (job.products_share(job.products_dtype) or 0.0)), 1.3)

    def apply(self) -> None:
        """Let it patch the models, and note what it changed."""
        self._changes: list[tuple[Any, str, Any, Any]] = []
        if self.scene.device.type != "cuda":
            raise Refused(_NO_GPU)
        if importlib.util.find_spec("liger_kernel") is None:
            raise Refused(MISSING)
        patching: Any = importlib.import_module("liger_kernel.transformers.monkey_patch")
        known = patching.MODEL_TYPE_TO_APPLY_LIGER_FN
        models = [one for one in pretrained(self.scene.roots()) if one.config.model_type in known]
        if not models:
            raise Refused("liger-kernel has no kernels for this model")
        owners = list(_owners(models))
        before = [dict(vars(owner)) for owner in owners]
        try:
            for model in models:
                patching._apply_liger_kernel_to_instance(model=model, **_OPTIONS)  # noqa: SLF001
        except BaseException:
            self._changes = list(_changes(owners, before))
            self.undo()
            raise
        self._changes = list(_changes(owners, before))
        if not self._changes:
            raise Refused("liger-kernel changed nothing")

    def undo(self) -> None:
        """Put back what it replaced; what somebody else has replaced since stays."""
        for owner, name, found, changed in reversed(self._changes):
            if vars(owner).get(name, _GONE) is not changed:
                continue
            if found is _GONE:
                _remove(owner, name)
            else:
                _put(owner, name, found)
        self._changes = []


def _owners(models: Iterable[Any]) -> Iterable[Any]:
    """Everything that it may patch: modules, the source files of their classes, and the classes there."""
    modules = list(dict.fromkeys(module for model in models for module in model.modules()))
    yield from modules
    files = {type(module).__module__ for module in modules}
    for file in [sys.modules[name] for name in sorted(files) if name.startswith("transformers.")]:
        yield file
        yield from {
            id(one): one
            for one in vars(file).values()
            if isinstance(one, type) and one.__module__ == file.__name__
        }.values()


def _changes(owners: list[Any], before: list[dict[str, Any]]) -> Iterable[tuple[Any, str, Any, Any]]:
    for owner, found in zip(owners, before, strict=True):
        now = dict(vars(owner))
        for name in found.keys() | now.keys():
            if now.get(name, _GONE) is not found.get(name, _GONE):
                yield owner, name, found.get(name, _GONE), now.get(name, _GONE)


def _put(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, type):
        setattr(owner, name, value)
    else:  # not by the module's own setattr, which sorts values into its registers
        vars(owner)[name] = value


def _remove(owner: Any, name: str) -> None:
    if isinstance(owner, type):
        delattr(owner, name)
    else:
        del vars(owner)[name]
