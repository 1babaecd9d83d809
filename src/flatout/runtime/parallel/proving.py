"""Divides blocks as planned, after a copy of the first has shown that it computes what the block computes.

Code between two divided layers often counts heads by itself (`view(batch, length, self.heads, -1)`): with
whole counts it would run, and be wrong. So counts are divided where that is needed, and only a copy whose
output and gradients agree with the original's decides which.
"""

import copy
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from flatout.records.errors import CallerMistake
from flatout.runtime.parallel.calling import Called
from flatout.runtime.parallel.nested import changed, tensors_in
from flatout.runtime.parallel.pairing import Found

# Sums of another order: a few roundings of the dtype, relative to the largest value.
_ROUNDINGS = 256
_FAR_SMALLER = 0.1
_FLOAT32_BYTES = 4


def divided_as_proven(blocks: list[Any], found: Found, seen: Called, mesh: Any) -> list[str]:
    """Divide every block; the names of counts that were divided with it. Raises CallerMistake unproven."""
    first, seen = _exact(blocks[0]), _exact_input(seen)
    expected = _answer(first, seen)
    tried = []
    for counts in _ways(blocks[0], found, mesh.size()):
        problem = _tried(copy.deepcopy(first), found, counts, seen, mesh, expected)
        if not problem:
            _insist_on_alike(blocks, counts)
            for block in blocks:
                _divide(block, found, _own(block, counts), mesh)
            return sorted(counts)
        tried.append(problem)
    heads = _heads(blocks[0], found)
    uneven = [f"{name}={count}" for name, count in heads.items() if count % mesh.size()]
    if uneven:
        raise CallerMistake(
            f"{', '.join(uneven)} and {mesh.size()} ranks",
            expected="a number of heads that divides by the number of ranks",
            remedy="start as many ranks as divide the heads, or partly=True with a plan for the other layers",
        )
    raise CallerMistake(
        f"a {type(blocks[0]).__qualname__} that computes something else once {', '.join(found.styles)} "
        f"are divided: {tried[-1]}",
        expected="the same output and gradients on a sample",
        remedy="give a plan={...} of layers that can be divided, or use strategy='fsdp'",
    )


def _exact(block: Any) -> Any:
    """In half precision, anything could pass for rounding: the proof is in float32."""
    halves = any(one.is_floating_point() and one.itemsize < _FLOAT32_BYTES for one in block.parameters())
    return copy.deepcopy(block).float() if halves else block


def _exact_input(seen: Called) -> Called:
    return dataclasses.replace(seen, args=changed(seen.args, _float), kwargs=changed(seen.kwargs, _float))


def _float(value: Any) -> Any:
    half = value.is_floating_point() and value.itemsize < _FLOAT32_BYTES
    return value.float() if half else value


def _insist_on_alike(blocks: list[Any], counts: dict[str, int]) -> None:
    """What is proven on one block holds for those of the same shapes and counts alone."""
    kinds = {
        (
            tuple((name, tuple(one.shape)) for name, one in block.named_parameters()),
            tuple(_own(block, counts).values()),
        )
        for block in blocks
    }
    if len(kinds) > 1:
        raise CallerMistake(
            f"{len(blocks)} blocks of {len(kinds)} different shapes",
            expected="blocks that are alike, but for their values",
            remedy="use strategy='fsdp', which takes them as they come",
        )


def _ways(block: Any, found: Found, ranks: int) -> Iterator[dict[str, int]]:
    """Counts to divide: none, those of heads, those and widths."""
    yield {}
    heads = {name: count for name, count in _heads(block, found).items() if count % ranks == 0}
    if heads:
        yield heads
    widths = _counts(block, found, lambda name, count, outputs: "head" not in name and count in outputs)
    widths |= _counts(block, found, lambda name, count, outputs: "head" in name and count in outputs)
    if widths:
        yield {**heads, **widths}


def _heads(block: Any, found: Found) -> dict[str, int]:
    def is_heads(name: str, count: int, outputs: set[int]) -> bool:
        whole = any(size % count == 0 and size > count for size in outputs)
        return "head" in name and not any(word in name for word in ("dim", "size")) and whole

    return _counts(block, found, is_heads)


def _counts(block: Any, found: Found, wanted: Any) -> dict[str, int]:
    """Whole numbers that modules around divided layers keep as attributes, by `module.name`."""
    modules = dict(block.named_modules())
    columns = [name for name, style in found.styles.items() if style == "column"]
    counts = {}
    for owner in {name.rpartition(".")[0] for name in columns}:
        outputs = {modules[name].out_features for name in columns if name.rpartition(".")[0] == owner}
        for name, value in vars(modules[owner]).items():
            if type(value) is int and value > 0 and not name.startswith("_") and wanted(name, value, outputs):
                counts[f"{owner}.{name}".lstrip(".")] = value
    return counts


def _own(block: Any, counts: dict[str, int]) -> dict[str, int]:
    """The same names with a block's own figures."""
    modules = dict(block.named_modules())
    return {path: getattr(modules[path.rpartition(".")[0]], path.rpartition(".")[2]) for path in counts}


def _divide(block: Any, found: Found, counts: dict[str, int], mesh: Any) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    made = {"column": ColwiseParallel, "row": RowwiseParallel}
    plan = {name: made[one]() if isinstance(one, str) else one for name, one in found.styles.items()}
    parallelize_module(block, mesh, plan)
    modules = dict(block.named_modules())
    for path, count in counts.items():
        owner, _, name = path.rpartition(".")
        setattr(modules[owner], name, count // mesh.size())


def _tried(block: Any, found: Found, counts: dict[str, int], seen: Called, mesh: Any, expected: Any) -> str:
    """What is wrong with a block divided like this, on any rank; nothing where all is right."""
    import torch
    import torch.distributed as dist

    problem, wrong = "", math.inf
    try:
        _divide(block, found, counts, mesh)
        scale = max(float(one.abs().max()) for one in expected)
        answer = _answer(block, seen)
        wrong = max(_apart(one, other, scale) for one, other in zip(answer, expected, strict=True))
        if not wrong <= 1.0:
            problem = f"off by {wrong:.2g} times what rounding allows"
    except Exception as error:  # noqa: BLE001 - shapes that no longer fit are an answer
        problem = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    device = mesh.device_type
    told = torch.tensor([1.0 if problem else 0.0], device=device)
    dist.all_reduce(told, op=dist.ReduceOp.MAX, group=mesh.get_group())
    return problem or ("it went wrong on another rank" if told.item() else "")


def _answer(block: Any, seen: Called) -> list[Any]:
    """A block's output, and gradients of its input and all its parameters, whole."""
    import torch

    was_training = block.training
    block.eval()
    try:
        with torch.enable_grad():
            args = tuple(_leaf(one) for one in seen.args)
            outputs = [one for one in tensors_in(block(*args, **seen.kwargs)) if one.is_floating_point()]
            weights = [_noise(one) for one in outputs]
            total = sum((one * weight).sum() for one, weight in zip(outputs, weights, strict=True))
            leaves = [one for one in (*args, *block.parameters()) if getattr(one, "requires_grad", False)]
            gradients: Any = torch.autograd.grad(total, leaves, allow_unused=True)
    finally:
        block.train(was_training)
    return [one.detach() for one in outputs] + [_whole(one) for one in gradients if one is not None]


def _leaf(value: Any) -> Any:
    import torch

    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    return value.detach().clone().requires_grad_()


def _noise(like: Any) -> Any:
    import torch

    generator = torch.Generator().manual_seed(1)
    return torch.randn(like.shape, generator=generator, device="cpu").to(like.device, like.dtype)


def _whole(value: Any) -> Any:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def _apart(one: Any, other: Any, scale: float) -> float:
    """How far apart, in units of what rounding allows.

    Some gradients are nothing but rounding (that of a key's bias, for softmax does not see it): what is far
    smaller than the rest is held against the rest.
    """
    import torch

    if one.shape != other.shape:
        return math.inf
    allowed = _ROUNDINGS * torch.finfo(other.dtype).eps * max(float(other.abs().max()), _FAR_SMALLER * scale)
    return float((one - other).abs().max()) / allowed
