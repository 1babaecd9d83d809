"""Attention that was written out, as one fused call."""

from typing import Any

from flatout.levers.attention_graph import Rewriter
from flatout.levers.capture import fresh
from flatout.levers.job import JobFacts, amdahl
from flatout.levers.lever import Broken, Call, Lever, Settings


class Attention(Lever):
    """Attention that was written out by hand, as one fused call (`scaled_dot_product_attention`).

    Scores, mask, softmax and their product with the values are found in the graph that TorchDynamo captures,
    in the forms that people write: `@`, `matmul`, `bmm` or `einsum`; scaled before or after; `masked_fill`,
    `where` or an added mask; with dropout or without. The matrix of scores is then never written to memory.
    Each rewrite is proven on the job's own tensors before it is used, and stays as written where the two do
    not agree. A causal mask is recognised by its values, not by its name; it must lie in a buffer or be made
    on the spot, and a buffer that is written to later ends the rewrite. Dropout draws other random numbers of
    the same distribution; in the guard's runs it draws those of the script.
    """

    id = "attention"
    title = "fused attention"
    safety = "numeric"
    reorders = True
    # Below the compiler: where both are on, one graph is captured, rewritten, and then compiled.
    layer = 9

    @classmethod
    def check(cls, job: JobFacts) -> str:
        """Needs a softmax between products, and a script that leaves compiling to us."""
        if job.habit("compiles"):
            return "the script compiles itself"
        operators = job.habit("operators")
        if operators is not None and "aten._softmax" not in operators:
            return "the model has no softmax of its own"
        return ""

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """Writing and reading scores is a good part of what is not products."""
        shares = job.device_shares or job.host_shares
        model = sum(shares.get(part, 0.0) for part in ("forward", "backward"))
        rest = max(0.0, model - (job.products_share(job.products_dtype) or 0.0))
        return amdahl(rest, 1.5)

    def rewriter(self, root: Any) -> Rewriter:
        """What rewrites the graphs of one root."""
        rewriter = Rewriter(self.scene.torch, root)
        rewriter.same_random = self.scene.same_random
        return rewriter

    def around(self, root: Any, call: Call) -> Call:
        """Capture, rewrite, and run what comes out as it is; the compiler does all three itself."""
        if self.scene.is_on("compile") is not None:
            return call
        rewriter = self.rewriter(root)

        def backend(module: Any, inputs: list[Any]) -> Any:
            rewriter.rewrite(module, inputs)
            return module.forward

        return self.insisting(rewriter, self.scene.torch.compile(fresh(call), backend=backend))

    def insisting(self, rewriter: Rewriter, compiled: Call) -> Call:
        """A rewrite that finds nothing is useless; one whose mask has changed must not be used again."""
        called = False

        def checked(*args: Any, **kwargs: Any) -> Any:
            nonlocal called
            if rewriter.constants_changed():
                raise Broken(self.id, "a mask that was taken for constant has been written to or replaced")
            result = compiled(*args, **kwargs)
            if not called:
                called = True
                if not rewriter.rewritten:
                    reasons = f": {rewriter.refused[0]}" if rewriter.refused else ""
                    self.useless = f"no attention was found that could be rewritten{reasons}"
            return result

        return checked
