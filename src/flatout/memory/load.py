"""`fit --load`: what loading a model's files takes, on the host and on GPUs, and how it takes less."""

import math
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from flatout.hardware.catalogue import price_table, select
from flatout.hardware.host import available_memory_bytes
from flatout.memory.allocator import CachingAllocator
from flatout.memory.fit import USUAL
from flatout.memory.loading_lines import filling, loading, model_in_state
from flatout.memory.model_files import read_model_files
from flatout.memory.pieces import ModelFile, Piece
from flatout.memory.planning import CONTEXT_BYTES, ERROR_BAR
from flatout.records.errors import CallerMistake
from flatout.records.load import (
    LeanerLoad,
    Load,
    LoadDtype,
    LoadedFile,
    LoadFormat,
    LoadGroup,
    LoadOption,
    LoadRole,
    LoadWay,
)
from flatout.records.rated import RatedGpu
from flatout.records.words import memory_size

_BF16_BYTES = 2
_FP32_BYTES = 4
_WIDER_THAN_BF16 = ("float32", "float64")
_AS_WIDE_AS_BF16 = ("float16", "bfloat16")
_GROUPS_SHOWN = 12
_LONGEST_NAME = 200
# Keys under which training code keeps what is not the model.
_OPTIMIZER = re.compile(r"(?:.*_)?(?:optim|optimizers?|opt_state)(?:_.*)?")
_AVERAGED = re.compile(r"(?:.*_)?ema(?:_.*)?")
_OTHER = re.compile(r"(?:[^.]*_)?(?:rng|random|schedulers?|scaler|sampler|loops|callbacks)(?:_[^.]*)?")
# What optimizers call their states.
_STATES = re.compile(
    "(?:max_)?exp_avg(?:_sq)?(?:_row|_col)?|exp_inf|momentum_buffer|square_avg|acc_delta|grad_avg"
)
_META = ('with torch.device("meta"):', "    model = Model()")


def load_files(paths: Sequence[Path], gpus: Sequence[str]) -> Load:
    """Read the headers of model files, and say what loading them takes; raises CallerMistake."""
    began = time.monotonic()
    if not paths:
        raise CallerMistake(
            "no model file", expected="a file or a folder with weights", remedy="flatout fit --load FILE"
        )
    chosen = select(gpus or USUAL)
    files = read_model_files(paths)
    contents = _Contents(files)
    available = available_memory_bytes()
    return Load(
        files=tuple(_loaded(file) for file in files),
        dtypes=tuple(_by_dtype(contents.pieces)),
        groups=tuple(_by_group(contents)),
        tensor_count=sum(piece.tensor_count for piece in contents.pieces),
        parameter_count=sum(piece.element_count for piece in contents.weights),
        stored_bytes=contents.used_bytes,
        weights_bytes=contents.weights_bytes,
        bf16_bytes=contents.bf16_bytes,
        host_available_bytes=available,
        ways=tuple(_ways(contents, available)),
        options=tuple(_options(contents, chosen)),
        leaner=tuple(_leaner(contents, chosen)),
        notes=tuple(_notes(contents)),
        took_s=time.monotonic() - began,
    )


class _Contents:
    """All that is in the files, and what it is for."""

    def __init__(self, files: Sequence[ModelFile]) -> None:
        self.files = files
        self.pieces = [piece for file in files for piece in file.pieces]
        self.roles = _roles(self.pieces)
        pairs = list(zip(self.pieces, self.roles, strict=True))
        self.weights = [piece for piece, role in pairs if role == "model"]
        self.used_bytes = sum(piece.used_bytes for piece in self.pieces)
        self.stored_bytes = sum(piece.stored_bytes for piece in self.pieces)
        self.weights_bytes = sum(piece.used_bytes for piece in self.weights)
        self.bf16_bytes = sum(map(_in_bf16, self.weights))
        # What is stored beside the weights.
        self.beside_bytes = sum(piece.stored_bytes for piece, role in pairs if role != "model")
        weights = {id(piece) for piece in self.weights}
        self.with_weights = [file for file in files if any(id(piece) in weights for piece in file.pieces)]
        self.is_script = all(file.format == "torchscript" for file in files)

    def largest(self, *formats: LoadFormat) -> int:
        """The most that is in one file of these formats: shards come one after the other."""
        return max((file.stored_bytes for file in self.files if file.format in formats), default=0)


# What is there.


def _top(path: tuple[str, ...]) -> str:
    return path[0].split(".")[0][:_LONGEST_NAME]


def _roles(pieces: Sequence[Piece]) -> list[LoadRole]:
    roles = [_role(piece.path) for piece in pieces]
    averaged = [bool(piece.path and _AVERAGED.fullmatch(_top(piece.path))) for piece in pieces]
    pairs = list(zip(roles, averaged, strict=True))
    # An average of the weights is a second copy, unless it is the only one.
    if any(role == "model" and not is_average for role, is_average in pairs):
        return ["other" if role == "model" and is_average else role for role, is_average in pairs]
    return roles


def _role(path: tuple[str, ...]) -> LoadRole:
    if not path:
        return "model"
    top, last = _top(path), path[-1].split(".")[-1]
    if _OPTIMIZER.fullmatch(top) or _STATES.fullmatch(last):
        return "optimizer"
    # An optimizer's own state dict, in a file of its own.
    if path[0] == "state" and len(path) > 2 and path[1].isdigit():
        return "optimizer"
    # With a dot it is a name of a model's own.
    return "other" if _OTHER.fullmatch(path[0]) else "model"


def _in_bf16(piece: Piece) -> int:
    """Bytes in bfloat16; integers, and floats that are narrower, stay as they are."""
    return piece.element_count * _BF16_BYTES if piece.dtype in _WIDER_THAN_BF16 else piece.used_bytes


def _loaded(file: ModelFile) -> LoadedFile:
    return LoadedFile(
        path=str(file.path),
        format=file.format,
        file_bytes=file.file_bytes,
        stored_bytes=file.stored_bytes,
        tensor_count=sum(piece.tensor_count for piece in file.pieces),
    )


def _by_dtype(pieces: Iterable[Piece]) -> list[LoadDtype]:
    sums: dict[str, tuple[int, int]] = {}
    for piece in pieces:
        name = piece.dtype or "unknown"
        count, size = sums.get(name, (0, 0))
        sums[name] = (count + piece.tensor_count, size + piece.stored_bytes)
    rows = [
        LoadDtype(dtype=name, tensor_count=count, stored_bytes=size) for name, (count, size) in sums.items()
    ]
    return sorted(rows, key=lambda row: -row.stored_bytes)


def _by_group(contents: _Contents) -> list[LoadGroup]:
    sums: dict[tuple[str, LoadRole], tuple[int, int]] = {}
    for piece, role in zip(contents.pieces, contents.roles, strict=True):
        key = (_top(piece.path) if piece.path else "", role)
        count, size = sums.get(key, (0, 0))
        sums[key] = (count + piece.tensor_count, size + piece.stored_bytes)
    rows = [
        LoadGroup(name=name, role=role, tensor_count=count, stored_bytes=size)
        for (name, role), (count, size) in sums.items()
    ]
    rows.sort(key=lambda row: -row.stored_bytes)
    shown, rest = rows[:_GROUPS_SHOWN], rows[_GROUPS_SHOWN:]
    for role in dict.fromkeys(row.role for row in rest):
        same = [row for row in rest if row.role == role]
        shown.append(
            LoadGroup(
                name=f"{len(same)} others",
                role=role,
                tensor_count=sum(row.tensor_count for row in same),
                stored_bytes=sum(row.stored_bytes for row in same),
            )
        )
    return shown


# The host.


def _ways(contents: _Contents, available: int) -> Iterator[LoadWay]:
    """The usual way, where a model is built first and then filled; and the leanest that the files allow."""
    read = contents.largest("torch", "legacy", "torchscript")
    if contents.is_script:
        yield _way("torch.jit.load", read, 0, available)
        return
    mapped = sum(file.stored_bytes for file in contents.files if file.format == "safetensors")
    yield _way("model built, then filled", read + contents.weights_bytes, mapped, available)
    held = contents.largest("legacy", "torchscript")
    pages = sum(file.stored_bytes for file in contents.files if file.format in ("safetensors", "torch"))
    yield _way("model on meta, files mapped" if pages else "model on meta", held, pages, available)


def _way(name: str, host_bytes: int, page_bytes: int, available: int) -> LoadWay:
    return LoadWay(name=name, host_bytes=host_bytes, page_bytes=page_bytes, fits=host_bytes <= available)


# GPUs.


def _options(contents: _Contents, chosen: Sequence[RatedGpu]) -> Iterator[LoadOption]:
    stored = _reserved(piece.used_bytes for piece in contents.pieces)
    weights = _reserved(piece.used_bytes for piece in contents.weights)
    in_bf16 = _reserved(map(_in_bf16, contents.weights))
    prices = price_table()
    for gpu in chosen:
        price = prices.cheapest(gpu.id)
        yield LoadOption(
            gpu=gpu.id,
            memory_bytes=gpu.usable_bytes,
            fits_stored=_fits(stored, gpu),
            fits_weights=_fits(weights, gpu),
            fits_bf16=_fits(in_bf16, gpu),
            usd_per_hour=price.usd_per_gpu_hour if price is not None else None,
        )


def _reserved(sizes: Iterable[int]) -> int:
    """What torch would reserve on a GPU for tensors of these sizes."""
    allocator = CachingAllocator()
    for size in sizes:
        allocator.allocate(size)
    return allocator.reserved_bytes


def _fits(reserved: int, gpu: RatedGpu) -> bool | None:
    room = gpu.usable_bytes - CONTEXT_BYTES
    answers = {reserved <= room * (1 + by) for by in (-ERROR_BAR, ERROR_BAR)}
    return answers.pop() if len(answers) == 1 else None


# How to load it leaner.


def _leaner(contents: _Contents, chosen: Sequence[RatedGpu]) -> list[LeanerLoad]:
    found = [
        *_mapped(contents),
        *_on_meta(contents),
        *_cast(contents),
        *_without_the_rest(contents),
        *_without_views(contents),
        *_converted(contents),
        *_over_several(contents, chosen),
    ]
    return sorted(found, key=lambda one: -(one.host_saved_bytes + one.device_saved_bytes))


def _mapped(contents: _Contents) -> Iterator[LeanerLoad]:
    saved = contents.largest("torch")
    if saved:
        yield LeanerLoad(
            what="map the file instead of reading it into memory",
            how=(loading(next(file for file in contents.files if file.format == "torch")),),
            host_saved_bytes=saved,
            mind="tensors come from the file when they are first used, so it must stay where it is",
        )


def _on_meta(contents: _Contents) -> Iterator[LeanerLoad]:
    """A model that has memory of its own before it is filled takes its weights twice."""
    if contents.weights_bytes and not contents.is_script:
        yield LeanerLoad(
            what="build the model without memory, and give it the tensors of the file",
            how=(*_META, *filling(contents.with_weights, contents.weights)),
            host_saved_bytes=contents.weights_bytes,
            mind="buffers that are not in the file stay on meta: make them anew",
        )


def _cast(contents: _Contents) -> Iterator[LeanerLoad]:
    saved = contents.weights_bytes - contents.bf16_bytes
    if saved > 0:
        yield LeanerLoad(
            what="cast the weights to bfloat16 on their way to the GPU",
            how=('model.to("cuda", torch.bfloat16)',),
            device_saved_bytes=saved,
            mind="for inference; load to the CPU first, so that the GPU never has them as they are stored",
        )


def _without_the_rest(contents: _Contents) -> Iterator[LeanerLoad]:
    saved = contents.beside_bytes
    if not saved or not contents.weights_bytes or contents.is_script:
        return
    first = contents.with_weights[0]
    leave_out = [file for file in contents.files if file not in contents.with_weights]
    how: tuple[str, ...] = tuple(f"# leave out {file.path}" for file in leave_out)
    if sum(file.stored_bytes for file in leave_out) < saved:
        if first.format == "safetensors":
            how += ("state = {name: state[name] for name in model.state_dict()}",)
        else:
            how += (loading(first), f'torch.save({model_in_state(contents.weights)}, "weights.pt")')
    yield LeanerLoad(
        what="for inference, take the weights alone: no optimizer, no averages, no random states",
        how=how,
        host_saved_bytes=min(saved, contents.largest("torch", "legacy")),
        device_saved_bytes=contents.used_bytes - contents.weights_bytes,
        mind="training cannot be resumed from that",
    )


def _without_views(contents: _Contents) -> Iterator[LeanerLoad]:
    saved = contents.stored_bytes - contents.used_bytes
    if saved > 0:
        yield LeanerLoad(
            what="save copies: some tensors are views, and all that they are views of is in the file",
            how=("torch.save({name: tensor.clone() for name, tensor in state.items()}, ...)",),
            host_saved_bytes=saved,
        )


def _converted(contents: _Contents) -> Iterator[LeanerLoad]:
    files = [file for file in contents.files if file.format == "legacy"]
    if files:
        old = files[0].path
        yield LeanerLoad(
            what="save it once more: what torch writes today can be mapped",
            how=(loading(files[0]), f"torch.save(state, {str(old.with_name(f'new-{old.name}'))!r})"),
            host_saved_bytes=contents.largest("legacy"),
        )


def _over_several(contents: _Contents, chosen: Sequence[RatedGpu]) -> Iterator[LeanerLoad]:
    """Where not even bfloat16 fits into the largest of the GPUs."""
    largest = max(chosen, key=lambda gpu: gpu.usable_bytes)
    room = largest.usable_bytes - CONTEXT_BYTES
    if contents.bf16_bytes <= room or contents.is_script:
        return
    count = math.ceil(contents.bf16_bytes / (room * (1 - ERROR_BAR)))
    first = contents.with_weights[0].path
    place = str(first.parent if len(contents.with_weights) > 1 else first)
    call = f'load_checkpoint_and_dispatch(model, {place!r}, device_map="auto", dtype=torch.bfloat16)'
    yield LeanerLoad(
        what=f"split the weights over {count} GPUs of {largest.id}, in bfloat16",
        how=("from accelerate import load_checkpoint_and_dispatch", *_META, call),
        device_saved_bytes=contents.weights_bytes - math.ceil(contents.bf16_bytes / count),
        mind="saved is what one GPU need not hold",
    )


# What else there is to say.


def _notes(contents: _Contents) -> Iterator[str]:
    for file in contents.files:
        for note in file.notes:
            yield f"{file.path.name}: {note}" if len(contents.files) > 1 else note
    devices = sorted({piece.device for piece in contents.pieces} - {"", "cpu", "meta"})
    if devices:
        where = ", ".join(device[:40] for device in devices[:4])
        yield f"it was saved from {where}: without map_location, torch.load puts it there again"
    narrow = sum(piece.element_count for piece in contents.weights if piece.dtype in _AS_WIDE_AS_BF16)
    if narrow:
        more = memory_size(narrow * (_FP32_BYTES - _BF16_BYTES))
        yield f"a model that is built in float32, as torch does by default, takes {more} more on the host"
    yield "GPUs hold the tensors alone; activations, caches and gradients come on top"
