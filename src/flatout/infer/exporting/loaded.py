"""A package, loaded: called like the module that it was made from, which need not be there."""

import zipfile
from pathlib import Path
from typing import Any

import msgspec
import torch

from flatout.levers.batches import leaves
from flatout.memory.splitting import map_tensors
from flatout.records.errors import CallerMistake, CorruptFile, EnvironmentProblem
from flatout.records.packages import METADATA, InputLook, PackageLook

_REMEDY = "flatout export-model module:factory --out model.pt2"


class LoadedModel:
    """Call it as the module was called. Inputs are checked: compiled code would read past their ends."""

    def __init__(self, package: Any, look: PackageLook | None) -> None:
        self._package = package
        # What it takes; None for a package that others made.
        self.look = look

    @classmethod
    def read(cls, path: Path, look: PackageLook | None = None, *, device: str = "") -> "LoadedModel":
        """Load a package; onto this device, where one is named."""
        if not path.is_file():
            raise CallerMistake(f"there is no file {path}", expected="a package, .pt2", remedy=_REMEDY)
        if not zipfile.is_zipfile(path):
            raise CorruptFile(path, "it is no package of AOTInductor", remedy=_REMEDY)
        look = look or _look_of(path)
        if look is not None and look.device.startswith("cuda") and not torch.cuda.is_available():
            raise EnvironmentProblem(
                f"{path} was compiled for {look.device}, and torch finds no GPU here",
                expected="a machine like the one it was made for",
                remedy="flatout export-model --device cpu on this machine",
            )
        wanted = torch.device(device) if device else None
        if wanted is not None and look is not None and torch.device(look.device).type != wanted.type:
            raise CallerMistake(
                f"{path} was compiled for {look.device}, and {device} is asked for",
                expected="the kind of device that it was made for",
                remedy=f"flatout export-model --device {device}",
            )
        number = -1 if wanted is None or wanted.index is None else wanted.index  # -1: the current one
        try:
            return cls(torch._inductor.aoti_load_package(str(path), device_index=number), look)  # noqa: SLF001
        except Exception as error:
            words = " ".join(str(error).split())[:300]
            raise CorruptFile(path, f"torch cannot load it: {words}", remedy=_REMEDY) from error

    @torch.no_grad()
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module would answer."""
        if self.look is not None:
            check(self.look, args, kwargs)
        # Compiled code takes what lies as the example's did.
        args, kwargs = map_tensors(lambda one: one.detach().contiguous(), (args, kwargs))
        return self._package(*args, **kwargs)

    def __repr__(self) -> str:
        inputs = ", ".join(_written(one) for one in self.look.inputs) if self.look else "inputs unknown"
        return f"LoadedModel({inputs})"


def check(look: PackageLook, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse what the package was not made for."""
    given = dict(leaves((args, kwargs)))
    wanted = {one.path: one for one in look.inputs}
    if given.keys() != wanted.keys():
        raise _mistake(f"inputs {_places(given)}", look)
    samples = set()
    for path, tensor in given.items():
        own = wanted[path]
        dtype = str(tensor.dtype).removeprefix("torch.")
        rest = slice(1 if own.batch else 0, None)
        if (
            dtype != own.dtype
            or tensor.dim() != len(own.shape)
            or tuple(tensor.shape[rest]) != own.shape[rest]
        ):
            raise _mistake(f"an input of {dtype} {tuple(tensor.shape)}", look)
        if torch.device(look.device).type != tensor.device.type:
            raise _mistake(f"an input on {tensor.device}", look)
        samples |= {tensor.shape[0]} if own.batch else set()
    most = look.most_samples or 0
    if len(samples) > 1 or any(not (look.fewest_samples or 0) <= one <= most for one in samples):
        raise _mistake(f"batches of {', '.join(map(str, sorted(samples)))} samples", look)


def _mistake(received: str, look: PackageLook) -> CallerMistake:
    return CallerMistake(
        received,
        expected=f"{', '.join(_written(one) for one in look.inputs)} on {look.device}",
        remedy="give it what it was exported with, or export it with other inputs",
    )


def _written(one: InputLook) -> str:
    shape = ("any", *one.shape[1:]) if one.batch else one.shape
    return f"{one.dtype}[{', '.join(map(str, shape))}]"


def _places(given: dict[str, Any]) -> str:
    return ", ".join(path.partition(".")[2] for path in given) or "without a tensor"


def _look_of(path: Path) -> PackageLook | None:
    """What a package says of itself; None where others made it."""
    loader: Any = getattr(getattr(torch._C, "_aoti", None), "AOTIModelPackageLoader", None)  # noqa: SLF001
    reading = getattr(loader, "load_metadata_from_package", None)
    if reading is None:
        return None
    try:
        said = reading(str(path), "model")
        return msgspec.json.decode(said[METADATA], type=PackageLook)
    except (RuntimeError, KeyError, msgspec.MsgspecError):
        return None
