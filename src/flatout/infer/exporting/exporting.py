"""From a module to a package that is proven to answer like it."""

import contextlib
import dataclasses
import inspect
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.utils._pytree import tree_map

from flatout.infer.buckets import Buckets, Fitting, fitting
from flatout.infer.exporting.finding import failure, found
from flatout.infer.exporting.loaded import LoadedModel
from flatout.infer.optimizing.calling import Arguments, arguments
from flatout.infer.optimizing.facts import facts_of
from flatout.infer.optimizing.guard import Guard, Judgement
from flatout.infer.optimizing.ways import Way
from flatout.levers.batches import leaves
from flatout.memory.splitting import map_tensors
from flatout.records.errors import CallerMistake, CannotWrite, EnvironmentProblem
from flatout.records.packages import METADATA, ExportedModel, ExportOrder, InputLook, PackageLook
from flatout.records.version import __version__

OnStage = Callable[[str], None]

_MOST_SAMPLES = 1 << 16


@dataclasses.dataclass(frozen=True)
class _Exported:
    program: Any
    is_dynamic: bool
    why_fixed: str


def export_model(order: ExportOrder, on_stage: OnStage) -> ExportedModel:
    """Make the package, prove it, and put it where it belongs."""
    began = time.monotonic()
    on_stage("making the module")
    module, example = _made(order)
    notes = []
    if module.training:
        notes.append("the module was in training mode, and was put into eval()")
    module = module.eval()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        on_stage("following its code")
        exported = _exported(module, example, order)
        on_stage("compiling (a minute or more)")
        out = Path(order.out)
        look = _look(module, example, exported)
        with _beside(out) as temporary:
            _package(exported.program, temporary, look)
            on_stage("comparing with the module")
            judged, compared = _proven(module, example, exported, temporary, look)
            temporary.replace(out)
    return ExportedModel(
        package=str(out),
        size_bytes=out.stat().st_size,
        look=look,
        dynamic_batch=exported.is_dynamic,
        fixed_reason=exported.why_fixed,
        error=judged.error or 0.0,
        allowed_error=judged.allowed or 0.0,
        compared=compared,
        took_s=time.monotonic() - began,
        notes=tuple(notes),
    )


def _made(order: ExportOrder) -> tuple[torch.nn.Module, Arguments]:
    factory = found(order.factory)
    made = _called(factory, order.factory)
    inputs = _called(found(order.inputs), order.inputs) if order.inputs else None
    if isinstance(made, tuple) and len(made) == 2 and inputs is None:
        made, inputs = made
    if not isinstance(made, torch.nn.Module) or inputs is None:
        what = type(made).__name__ + ("" if inputs is not None else ", and no inputs")
        raise CallerMistake(
            f"{order.factory} returned {what}",
            expected="a torch.nn.Module and what it is called with: a tensor, a tuple of arguments or a dict",
            remedy="def make(): return model, torch.randn(8, 3, 224, 224)   # or --inputs module:function",
        )
    device = order.device
    if device:
        try:
            made = made.to(device)
        except (RuntimeError, AssertionError) as error:
            raise EnvironmentProblem(
                f"the module cannot go to {device}: {str(error).splitlines()[0]}",
                expected="a device that torch can use here",
                remedy="flatout doctor",
            ) from error
    call = arguments(inputs)
    if not call.tensors():
        raise CallerMistake(
            "inputs without a tensor", expected="what the module is called with", remedy="--inputs"
        )
    # Laid out as they will come: callers' inputs are made contiguous.
    return made, call.mapped(lambda one: one.to(device or one.device).contiguous())


def _called(function: Any, name: str) -> Any:
    if isinstance(function, torch.nn.Module | torch.Tensor | dict | tuple):
        return function
    try:
        return function()
    except Exception as error:
        raise failure(error, f"calling {name}") from error


def _exported(module: torch.nn.Module, example: Arguments, order: ExportOrder) -> _Exported:
    """With a batch of any size where that holds; else with the example's."""
    try:
        example.copied().of(module)
    except Exception as error:
        raise failure(error, "calling the module with its inputs") from error
    why = "as was asked for" if order.fixed_batch else ""
    if not why:
        fits = fitting(module, example, Buckets())
        if isinstance(fits, str):
            why = fits
        else:
            try:
                return _Exported(_dynamic(module, example, fits), is_dynamic=True, why_fixed="")
            except Exception as error:  # noqa: BLE001 - fixed it may still work
                why = " ".join(str(error).split())[:400]
    try:
        program = torch.export.export(module, example.args, example.kwargs)
    except Exception as error:
        raise failure(error, "torch.export") from error
    return _Exported(program, is_dynamic=False, why_fixed=why)


def _dynamic(module: torch.nn.Module, example: Arguments, fits: Fitting) -> Any:
    size = fits.size_of(example.args, example.kwargs)
    assert size is not None
    # With one sample, torch would take the size for a constant.
    larger = fits.padded(example, (max(size[0], 2), size[1]))
    dimension = torch.export.Dim("batch", min=1, max=_MOST_SAMPLES)
    samples = max(size[0], 2)

    def shape(leaf: Any) -> Any:
        is_by_sample = isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.shape[0] == samples
        return {0: dimension} if is_by_sample else None

    bound = inspect.signature(module.forward).bind(*larger.args, **larger.kwargs)
    shapes = tree_map(shape, dict(bound.arguments))
    return torch.export.export(module, larger.args, larger.kwargs, dynamic_shapes=shapes)


def _package(program: Any, path: Path, look: PackageLook) -> None:
    said = {METADATA: msgspec.json.encode(look).decode()}
    try:
        torch._inductor.aoti_compile_and_package(  # noqa: SLF001
            program, package_path=str(path), inductor_configs={"aot_inductor.metadata": said}
        )
    except Exception as error:
        words = " ".join(str(error).split())[:600]
        if "compiler" in words.lower() and ("not found" in words.lower() or "No working" in words):
            raise EnvironmentProblem(
                f"no C++ compiler was found: {words}", expected="g++ or clang", remedy="apt install g++"
            ) from error
        raise failure(error, "AOTInductor") from error


def _look(module: torch.nn.Module, example: Arguments, exported: _Exported) -> PackageLook:
    facts = facts_of(module, example)
    tensors = leaves((example.args, example.kwargs))
    inputs = [
        InputLook(
            path=path,
            dtype=str(one.dtype).removeprefix("torch."),
            shape=tuple(one.shape),
            batch=exported.is_dynamic and bool(one.dim()) and one.shape[0] == facts.samples,
        )
        for path, one in tensors
    ]
    return PackageLook(
        device=str(facts.device),
        torch_version=f"{torch.__version__} (flatout {__version__})",
        inputs=tuple(inputs),
        fewest_samples=1 if exported.is_dynamic else facts.samples,
        most_samples=_MOST_SAMPLES if exported.is_dynamic else facts.samples,
    )


def _proven(
    module: torch.nn.Module, example: Arguments, exported: _Exported, path: Path, look: PackageLook
) -> tuple[Judgement, int]:
    """The package's answers against the module's: on the example, on perturbed ones, on other sizes."""
    package = LoadedModel.read(path, look)
    cases = [example]
    facts = facts_of(module, example)
    if exported.is_dynamic and facts.samples is not None:
        cases += [_with_samples(example, facts.samples, size) for size in (1, facts.samples + 3)]
    guard = Guard(module, cases, facts.dtype)
    judged = guard.judge(package, Way())
    if judged.refusal:
        raise EnvironmentProblem(
            f"the package does not answer like the module: {judged.refusal}",
            expected="the same outputs, as far as rounding lets one tell",
            remedy="flatout export-model --fixed-batch, or another version of torch; nothing was written",
        )
    return judged, guard.cases


def _with_samples(example: Arguments, samples: int, wanted: int) -> Arguments:
    def sized(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim() or tensor.shape[0] != samples:
            return tensor
        return torch.cat([tensor] * (wanted // samples + 1))[:wanted]

    args, kwargs = map_tensors(sized, (example.args, example.kwargs))
    return Arguments(args, kwargs)


@contextlib.contextmanager
def _beside(out: Path) -> Iterator[Path]:
    """A name in the same folder: whatever happens, the old file or the new one is there, and nothing else."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{out.stem}-", suffix=".pt2", dir=out.parent)
    except OSError as error:
        raise CannotWrite(out, error, remedy="choose a folder that this user may write to") from error
    os.close(handle)
    path = Path(name)
    path.unlink()
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
