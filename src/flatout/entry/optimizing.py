"""`flatout.optimize`: any module made fast for inference; `flatout.Buckets`: the sizes of its inputs."""

from collections.abc import Sequence
from typing import Any

from flatout.infer.buckets import Buckets
from flatout.infer.optimizing.optimize import make_optimized
from flatout.infer.optimizing.optimized import Optimized
from flatout.records.inference import Goal

__all__ = ["Buckets", "Optimized", "optimize"]


def optimize(
    module: Any,
    example_inputs: Any,
    goal: Goal = "latency",
    *,
    allow: Sequence[str] = (),
    budget_s: float = 120.0,
    buckets: Buckets | None = None,
) -> Optimized:
    """Make a module fast for inference: try ways of running it by turns, keep what is measured to help.

        model = flatout.optimize(model, torch.randn(8, 3, 224, 224, device="cuda"))
        scores = model(images)
        print(model.report)

    `example_inputs` is what the module is called with: a tensor, a tuple of arguments, a dict of keywords,
    or a list of these where sizes vary. `goal` is "latency" (one call until its result is there) or
    "throughput" (a call among many). Tried: inference mode, CUDA graphs, TF32, bf16 and fp16 (autocast, and
    weights cast), channels-last, cuDNN's autotuning, attention kernels, torch.compile, and its
    max-autotune. What is behind `allow` changes weights by more than rounding: "int8-weights",
    "int4-weights", "fp8-weights" (torchao).

    A way is kept if it is faster beyond doubt, and if its outputs, on the examples and on perturbed ones,
    are no farther from the module's own than rounding explains; how far that is, twins of the module show
    whose every operation is off by the roundoff. What crashes, runs out of memory or hangs is a verdict in
    the report.

    The answer is called like the module, and passes every other name on to it. Weights that are cast are a
    copy, which follows `load_state_dict`. Batches of other sizes are padded to a few (`buckets`), where
    that is proven to change nothing; other shapes run without what is compiled, and are counted. A module
    in training mode is put into eval(), with a warning. `close()` puts everything back.

    `budget_s` is how long the search may take, in seconds; compiling is most of it.
    """
    return make_optimized(module, example_inputs, goal, allow=allow, budget_s=budget_s, buckets=buckets)
