"""torch.compile around the model's call."""

import sys
from typing import Any

from flatout.levers.accumulation import Accumulation
from flatout.levers.attention import Attention
from flatout.levers.attention_graph import Rewriter
from flatout.levers.capture import fresh
from flatout.levers.compiled_graphs import graphs_compiled
from flatout.levers.graph_outputs import GraphOutputs
from flatout.levers.job import JobFacts, amdahl
from flatout.levers.lever import Call, Lever, Scene, Settings
from flatout.levers.loss_function import loss_function
from flatout.levers.pending import Pending

# Elements of a loss's input: with fewer, what is launched costs more than what is read.
_LARGE_LOSS = 1 << 22
# Whoever traces anything in another thread at that moment makes torch refuse: not for good.
_TRIES = 3
# By mode: the same with kernels chosen by timing them.
_AUTOTUNED = {"default": "max-autotune-no-cudagraphs", "reduce-overhead": "max-autotune"}
WITH_GRAPHS = ("reduce-overhead", "max-autotune")
MODES = ("default", *WITH_GRAPHS, "max-autotune-no-cudagraphs")
# What the best of a dozen kernels gives over the first, of products and of what is fused with them.
_TUNED_PRODUCTS = 1.08


class Compile(Lever):
    """torch.compile of the model's call, with the settings that measure best.

    Fuses what is bound by memory and by launches. `reduce-overhead` adds CUDA graphs, which take away what is
    left of the launches; it is refused where gradients are accumulated over several calls. The first step
    takes long: that time is recorded, and a plan whose compilation would not pay back within the job is not
    chosen. `max-autotune` times a dozen kernels for each product, with graphs or without, whichever won: that
    takes minutes, and is tried last, where the time allowed leaves room for it. A compilation that yields no
    graph counts as failed. A cross entropy over many classes that the script computes outside of the model is
    compiled too: it then reads and writes its input once, where it would do so five times. Evaluation runs as
    written.
    """

    id = "compile"
    title = "torch.compile"
    safety = "numeric"
    reorders = True
    layer = 10

    @classmethod
    def check(cls, job: JobFacts) -> str:
        """The script must not compile itself, and must keep to a few shapes."""
        if job.habit("compiles"):
            return "the script compiles itself"
        if not job.on_gpu and not job.habit("cpp_compiler"):
            return "there is no C++ compiler, which torch.compile needs for CPU code"
        if job.habit("input_shapes", 1) > 8:
            return f"inputs came in {job.habit('input_shapes')} shapes: each would be compiled anew"
        return ""

    @classmethod
    def variants(cls, job: JobFacts) -> tuple[Settings, ...]:
        """Plain first; with CUDA graphs where one call makes one step."""
        graphs: Settings = {"mode": "reduce-overhead"}
        has_graphs = job.on_gpu and not cls.check_settings(job, graphs)
        return ({"mode": "default"}, graphs) if has_graphs else ({"mode": "default"},)

    @classmethod
    def check_settings(cls, job: JobFacts, settings: Settings) -> str:
        """Graphs write over what the last call left: one call must make one step. On a CPU there are none."""
        if settings.get("mode") not in WITH_GRAPHS or not job.on_gpu:
            return ""
        if len(job.habit("roots", ())) > 1:
            return "CUDA graphs of several models would write over each other"
        if job.micro_batches > 1 or job.habit("input_shapes", 1) > 1:
            return "CUDA graphs need one call a step, of one shape"
        return ""

    @classmethod
    def autotuned(cls, job: JobFacts, settings: Settings) -> Settings | None:
        """The same with kernels chosen by timing them; None where there is no choice of kernels."""
        mode = _AUTOTUNED.get(settings.get("mode", "default"))
        return {**settings, "mode": mode} if mode is not None and job.on_gpu else None

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """Products stay; of the rest of forward and backward about half goes away by fusion."""
        shares = job.device_shares or job.host_shares
        model = sum(shares.get(part, 0.0) for part in ("forward", "loss", "backward"))
        products = job.products_share(job.products_dtype) or 0.0
        rest = max(0.0, model - products)
        mode = settings.get("mode", "default")
        tuned = amdahl(products, _TUNED_PRODUCTS) if mode in _AUTOTUNED.values() else 1.0
        if job.on_gpu and mode in WITH_GRAPHS and job.busy_share is not None:
            return tuned * amdahl(rest, 2.0) * amdahl(max(0.0, 1.0 - job.busy_share), 4.0)
        return tuned * amdahl(rest, 2.0 if job.on_gpu else 1.3)

    def __init__(self, scene: Scene, settings: Settings) -> None:
        super().__init__(scene, settings)
        self._compiled_loss: Call | None = None
        self._pending = Pending()
        self._graphs: list[GraphOutputs] = []
        self._accumulations: list[Accumulation] = []

    def apply(self) -> None:
        """Stand around the loss; the model's call is compiled when it comes."""
        loss_function(self.scene.torch).put(self.id, self.layer, self._around_the_loss)

    def undo(self) -> None:
        """Leave the loss alone."""
        loss_function(self.scene.torch).take(self.id)
        for one in self._accumulations:
            one.forget()  # what comes until it is on again is not seen

    def updated(self, optimizer: Any) -> None:
        """Gradients from before it are used up, and so is what the backward pass needed."""
        for one in self._accumulations:
            if one.updated(optimizer):
                self._pending.forget()

    def let_go(self) -> None:
        """Graphs keep a whole step's activations for their next replay: give them back."""
        for one in self._graphs:
            one.release()
        trees: Any = sys.modules.get("torch._inductor.cudagraph_trees")
        if self._graphs and trees is not None:
            trees.reset_cudagraph_trees()
        self._graphs.clear()
        self._accumulations.clear()

    def _around_the_loss(self, real: Call) -> Call:
        torch = self.scene.torch
        if self._compiled_loss is None:
            self._compiled_loss = torch.compile(fresh(real))
        compiled, failures = self._compiled_loss, 0

        def cross_entropy(input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002 - it is called so
            nonlocal failures
            # Whoever only traces, with tensors that are none, gets torch's own function.
            is_real = type(input) is torch.Tensor
            is_large = is_real and input.requires_grad and input.numel() >= _LARGE_LOSS
            if failures >= _TRIES or not is_large or not torch.is_grad_enabled():
                return real(input, *args, **kwargs)
            try:
                return compiled(input, *args, **kwargs)
            except Exception as error:  # noqa: BLE001 - as written it may go well; else it is the script's error
                failures += 1
                if failures == _TRIES:
                    words = (str(error).strip().splitlines() or [""])[0][:300]
                    self.scene.note(self.id, f"the loss runs as written: {type(error).__name__}: {words}")
                return real(input, *args, **kwargs)

        return cross_entropy

    def around(self, root: Any, call: Call) -> Call:
        """Compile a fresh plain function: `Module.compile` of a module of torch's own compiles nothing."""
        torch, mode = self.scene.torch, self.settings.get("mode", "default")
        attention, inner = self.scene.is_on("attention"), fresh(call)
        if isinstance(attention, Attention):
            rewriter = attention.rewriter(root)
            backend = _rewritten_first(torch, rewriter, mode)
            compiled = attention.insisting(rewriter, torch.compile(inner, backend=backend))
        else:
            compiled = torch.compile(inner, mode=None if mode == "default" else mode)
        if mode not in WITH_GRAPHS:
            return self._insisting_on_a_graph(compiled)
        self._graphs.append(GraphOutputs(torch, compiled, self._pending))
        self._accumulations.append(Accumulation(root, self._graphs[-1]))
        return self._insisting_on_a_graph(self._accumulations[-1])

    def _insisting_on_a_graph(self, compiled: Call) -> Call:
        before = graphs_compiled()
        seen = False

        def checked(*args: Any, **kwargs: Any) -> Any:
            nonlocal seen
            result = compiled(*args, **kwargs)
            if not seen:
                seen = True
                if graphs_compiled() == before:
                    self.useless = "torch.compile found nothing that it could compile"
            return result

        return checked


def _rewritten_first(torch: Any, rewriter: Rewriter, mode: str) -> Any:
    """The compiler in this mode, behind a pass of ours over what was captured."""

    inductor = torch._TorchCompileInductorWrapper(mode, None, None)  # noqa: SLF001

    def backend(module: Any, inputs: Any) -> Any:
        rewriter.rewrite(module, inputs)
        return inductor(module, inputs)

    backend.reset = inductor.reset  # type: ignore[attr-defined]
    return backend
