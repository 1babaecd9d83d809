"""Weights of linear layers in 8 or 4 bits, where nothing trains."""

import copy
import importlib
import importlib.util
from typing import Any, ClassVar

from flatout.levers.float8_layers import children, is_plain_linear
from flatout.levers.job import JobFacts, amdahl
from flatout.levers.lever import Lever, Refused, Scene, Settings
from flatout.levers.torchao import MISSING


class _QuantizedWeights(Lever):
    safety = "recipe"
    remakes = True
    # By torchao's name; and how many times fewer bytes a layer reads.
    config: ClassVar[str]
    fewer: ClassVar[float]
    # The least compute capability that has kernels for it; None: CPUs have, too.
    capability: ClassVar[tuple[int, int] | None] = None

    @classmethod
    def check(cls, job: JobFacts) -> str:
        """Needs torchao, a script that infers, and layers to change."""
        if not job.habit("infers"):
            return "the job trains: weights that are rounded so much do not"
        if "torchao" not in job.habit("packages", {}):
            return MISSING
        if not job.habit("linears"):
            return "the model has no linear layers"
        if cls.capability is not None and (
            not job.on_gpu or (job.capability or cls.capability) < cls.capability
        ):
            return f"its kernels need a GPU of compute capability {cls.capability[0]}.{cls.capability[1]}"
        if job.habit("compiles"):
            return "the script compiles itself: its layers must not be exchanged any more"
        return ""

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """Fewer bytes to read, for what is not bound by products: of these there are not fewer."""
        products = job.products_share(job.products_dtype) or 0.0
        forward = (job.device_shares or job.host_shares).get("forward", 0.0)
        return amdahl(max(0.0, forward - products), cls.fewer)

    def __init__(self, scene: Scene, settings: Settings) -> None:
        super().__init__(scene, settings)
        self._made: dict[Any, Any] = {}
        self._exchanged: list[tuple[Any, str, Any, Any]] = []

    def apply(self) -> None:
        """Exchange the linear layers of every root for copies with rounded weights."""
        if not self.scene.infers:
            raise Refused("the job trains: weights that are rounded so much do not")
        if importlib.util.find_spec("torchao") is None:
            raise Refused(MISSING)
        torch = self.scene.torch
        for root in self.scene.roots():
            for parent, name, layer in list(children(root)):
                if is_plain_linear(torch, layer):
                    low = self._made.get(layer) or self._made.setdefault(layer, self._rounded(layer))
                    parent._modules[name] = low  # noqa: SLF001
                    self._exchanged.append((parent, name, layer, low))
        if not self._exchanged:
            raise Refused("the model has no plain linear layers")

    def undo(self) -> None:
        """Put the layers back that were found, unless the script has put others there since."""
        for parent, name, layer, low in self._exchanged:
            if parent._modules.get(name) is low:  # noqa: SLF001
                parent._modules[name] = layer  # noqa: SLF001
        self._exchanged = []

    def _rounded(self, layer: Any) -> Any:
        torch, quantization = self.scene.torch, importlib.import_module("torchao.quantization")
        low = copy.copy(layer)
        low._parameters = dict(layer._parameters)  # noqa: SLF001 - the layer keeps its own
        holder = torch.nn.ModuleList([low])
        quantization.quantize_(holder, getattr(quantization, self.config)())
        return holder[0]


class Int8Weights(_QuantizedWeights):
    """Weights of linear layers in int8, one scale a row (torchao). Only with `--allow int8-weights`.

    A call with few rows spends its time reading weights: half the bytes are near to half the time. Outputs
    change by about a thousandth; how often the same class comes first is told. Large batches compute more
    than they read, and gain nothing.
    """

    id = "int8-weights"
    title = "int8 weights"
    roundoff = 2.0**-8
    config = "Int8WeightOnlyConfig"
    fewer = 2.0
    conflicts = ("int4-weights", "fp8-weights")


class Int4Weights(_QuantizedWeights):
    """Weights of linear layers in int4, one scale for each 128 (torchao). Only with `--allow int4-weights`.

    A quarter of the bytes of bf16. Outputs change visibly, by some hundredths: language models bear it, as a
    rule, small classifiers may not.
    """

    id = "int4-weights"
    title = "int4 weights"
    roundoff = 2.0**-4
    config = "Int4WeightOnlyConfig"
    fewer = 4.0
    capability = (8, 0)
    conflicts = ("int8-weights", "fp8-weights")


class Fp8Weights(_QuantizedWeights):
    """Weights of linear layers in float8, one scale a row (torchao). Only with `--allow fp8-weights`.

    Half the bytes of bf16, with a range that bears outliers better than int8 does.
    """

    id = "fp8-weights"
    title = "fp8 weights"
    roundoff = 2.0**-4
    config = "Float8WeightOnlyConfig"
    fewer = 2.0
    capability = (8, 9)
    conflicts = ("int8-weights", "int4-weights")
