"""The model to serve: from a factory in the user's code, a compiled package or a TorchScript file."""

import dataclasses
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from flatout.infer.exporting.loaded import LoadedModel
from flatout.infer.serving.placing import placed
from flatout.infer.serving.specs import DTYPES, Size, TensorSpec, parsed
from flatout.records.errors import CallerMistake, JobFailed, nearest
from flatout.records.packages import PackageLook

_POSITION = re.compile(r"input\d+")
_REMEDY = "--input x:float32[3,224,224]   # or a factory that returns (model, example inputs)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Served:
    """Something that can be called with a batch."""

    name: str
    call: Callable[..., Any]
    # Of one item. None at all: a function from a list of JSON values to a list as long.
    specs: tuple[TensorSpec, ...]
    device: torch.device
    # Whether inputs go by name.
    by_name: bool
    # Inputs as the factory gave them, with a batch dimension; else made up.
    examples: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    # The one size of batch that it takes; None where any will do, or where nobody knows.
    samples: int | None = None


def load(target: str, inputs: Sequence[str], device: str) -> Served:
    """From `module:factory`, or a .pt2 or .pt file; raises CallerMistake or JobFailed."""
    specs = tuple(map(parsed, inputs))
    path, place = Path(target), placed(device)
    if path.suffix in (".pt2", ".pt"):
        return _from_file(path, specs, device)
    return _from_factory(target, specs, place)


def leave_a_core() -> None:
    """On a CPU, one core is for requests: threads that wait for each other lose more than a core's worth.

    To be called in each thread that computes: libraries below torch keep this number for each thread.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, min(torch.get_num_threads(), cores - 1)))


def _from_file(path: Path, specs: tuple[TensorSpec, ...], device: str) -> Served:
    if not path.is_file():
        raise CallerMistake(
            f"{path} does not exist",
            expected="a .pt2 or .pt file",
            remedy="check the path; module:factory is another way",
        )
    unknown = CallerMistake(
        f"{path} does not say what its inputs are", expected="--input for each of them", remedy=_REMEDY
    )
    if not specs and path.suffix == ".pt":
        raise unknown
    call, look = _read(path, device)
    named = _told_inputs(look)
    by_name = bool(named) and not any(_POSITION.fullmatch(one.name) for one in named)
    specs = specs or named
    if not specs:
        raise unknown
    is_fixed = look is not None and look.fewest_samples == look.most_samples
    return Served(
        name=path.stem,
        call=call,
        specs=specs,
        # A package is for the kind of device that it was compiled for.
        device=placed(device or (torch.device(look.device).type if look is not None else "")),
        by_name=by_name,
        samples=look.most_samples if look is not None and is_fixed else None,
    )


def _read(path: Path, device: str) -> tuple[Any, PackageLook | None]:
    """What can be called, and what the file says of it."""
    try:
        if path.suffix == ".pt2":
            loaded = LoadedModel.read(path, device=device)
            return loaded, loaded.look
        return torch.jit.load(str(path), map_location=placed(device)).eval(), None  # type: ignore[no-untyped-call]
    except CallerMistake:
        raise
    except Exception as error:
        said = (str(error).splitlines() or [""])[0][:200]
        raise CallerMistake(
            f"{path} cannot be loaded: {type(error).__name__}: {said}",
            expected="an AOTInductor package (.pt2) or a TorchScript file (.pt), made for this machine",
            remedy="export it again with this torch, or serve module:factory",
        ) from error


def _told_inputs(look: PackageLook | None) -> tuple[TensorSpec, ...]:
    """Of a package of `flatout export-model`: its arguments by number, or its keywords; else none."""
    found = []
    for one in look.inputs if look is not None else ():
        kind, _, name = one.path.partition(".")
        name = f"input{name}" if kind == "0" else name
        if not one.shape or one.dtype not in DTYPES or not name.isidentifier():
            return ()
        found.append(TensorSpec(name, one.dtype, tuple(Size(size, size) for size in one.shape[1:])))
    return tuple(found)


def _from_factory(target: str, specs: tuple[TensorSpec, ...], device: torch.device) -> Served:
    made = _made(_factory(target))
    model, examples = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not callable(model):
        raise CallerMistake(
            f"{target} returned {type(model).__name__}",
            expected="a torch module or another callable, or (callable, example inputs)",
            remedy="return model, (torch.randn(1, 3, 224, 224),)",
        )
    is_module = isinstance(model, torch.nn.Module)
    if is_module:
        model = model.eval().requires_grad_(False).to(device)
    named = _named(model, examples)
    specs = specs or tuple(_spec(name, tensor) for name, tensor in named.items())
    if is_module and not specs:
        raise CallerMistake(
            f"{target} returned a module without example inputs",
            expected="to know its inputs",
            remedy=_REMEDY,
        )
    return Served(
        name=target.rpartition(":")[0].rpartition(".")[2] or target,
        call=model,
        specs=specs,
        device=device,
        by_name=isinstance(examples, Mapping),
        examples=named if all(spec.name in named for spec in specs) else {},
    )


def _factory(target: str) -> Callable[[], Any]:
    module_name, _, name = target.partition(":")
    if not module_name or not name.isidentifier():
        raise CallerMistake(
            f"{target!r} names nothing to serve",
            expected="module:factory, a .pt2 or .pt file, or --llm FOLDER",
            remedy="flatout serve model:make   # make() of model.py returns the model",
        )
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise CallerMistake(
            f"{module_name} cannot be imported: {type(error).__name__}: {error}",
            expected="a module in this folder or one that is installed",
            remedy=f"python -c 'import {module_name}'   # shows why",
        ) from error
    found = getattr(module, name, None)
    if not callable(found):
        near = nearest(name, [each for each in vars(module) if not each.startswith("_")])
        raise CallerMistake(
            f"{module_name} has no function {name!r}",
            expected="a function without arguments that returns the model",
            remedy=f"did you mean {module_name}:{near}?" if near else "check its name",
        )
    return found  # type: ignore[no-any-return]


def _made(factory: Callable[[], Any]) -> Any:
    try:
        return factory()
    except (Exception, SystemExit) as error:
        raise JobFailed(
            f"the factory raised {type(error).__name__}: {error}",
            expected="a model",
            remedy="the same with --debug shows where",
        ) from error


def _named(model: Any, examples: Any) -> dict[str, torch.Tensor]:
    """Examples by the names of what the model takes."""
    if examples is None:
        return {}
    if isinstance(examples, Mapping):
        found = {str(name): value for name, value in examples.items()}
    else:
        values = list(examples) if isinstance(examples, list | tuple) else [examples]
        found = dict(zip(_parameters(model, len(values)), values, strict=True))
    for name, value in found.items():
        if not isinstance(value, torch.Tensor) or not value.dim() or not value.shape[0]:
            raise CallerMistake(
                f"the example of {name!r} is {type(value).__name__}",
                expected="a tensor as the model is called with, its first dimension the batch",
                remedy="return model, (torch.randn(1, 3, 224, 224),)",
            )
    return found


def _parameters(model: Any, count: int) -> list[str]:
    try:
        called = model.forward if isinstance(model, torch.nn.Module) else model
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        names = [one.name for one in inspect.signature(called).parameters.values() if one.kind in kinds]
    except (TypeError, ValueError):
        names = []
    return names[:count] if len(names) >= count else [f"input{number}" for number in range(count)]


def _spec(name: str, example: torch.Tensor) -> TensorSpec:
    dtype = str(example.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise CallerMistake(
            f"the example of {name!r} holds {dtype}",
            expected=f"one of {', '.join(DTYPES)}",
            remedy="cast it in the model",
        )
    return TensorSpec(name, dtype, tuple(Size(size, size) for size in example.shape[1:]))
