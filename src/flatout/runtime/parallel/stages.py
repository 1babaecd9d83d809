"""A stage of a pipeline: the model's own forward with the part of it that is this stage's."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from flatout.records.errors import CallerMistake
from flatout.runtime.parallel.parameters import named
from flatout.runtime.parallel.wrapped import call

_FEW_ROUNDINGS = 8


@dataclasses.dataclass(frozen=True)
class Cut:
    """The blocks of one stage: from, up to."""

    begin: int
    end: int
    is_first: bool
    is_last: bool


@dataclasses.dataclass(frozen=True)
class Forward:
    """What a forward pass of the whole model showed."""

    output: Any
    # Layers with parameters of their own that ran before the first block, with what they gave, and after it.
    before: dict[Any, Any]
    after: frozenset[Any]
    # Whether a block gives a tuple that begins with what the next one reads.
    in_tuple: bool


class _Left(BaseException):
    """Out of a model's forward, with what the next stage needs; no `except Exception` holds it up."""

    def __init__(self, sent: Any) -> None:
        super().__init__()
        self.sent = sent


class Stage(torch.nn.Module):
    """Called with what the stage before sent (the batch, for the first), and with the batch as keywords."""

    def __init__(self, model: Any, blocks: list[Any], cut: Cut, forward: Forward) -> None:
        super().__init__()
        self.model = model
        self._cut = cut
        self._received: Any = None
        # What makes the model's output of its tensors again: torch takes no other things from a stage.
        self.form: Callable[[Any], Any] = _as_it_is
        self._undo: list[Callable[[], None]] = []
        for at, block in enumerate(blocks):
            self._instead(block, self._for_block(at, block.forward, in_tuple=forward.in_tuple))
        if not cut.is_first:
            for module, given in forward.before.items():
                self._instead(module, _zeros_like(given))

    def forward(self, *received: Any, **batch: Any) -> Any:
        """The model's output on the last stage, elsewhere what the next one reads."""
        args = received
        if not self._cut.is_first:
            (self._received,) = received
            places = sorted(name for name in batch if name.startswith("argument_"))
            args = tuple(batch.pop(name) for name in places)
        try:
            tensors, self.form = taken_apart(self.model(*args, **batch))
            return tensors
        except _Left as left:
            return left.sent
        finally:
            self._received = None

    def _for_block(self, at: int, forward: Any, *, in_tuple: bool) -> Any:
        cut = self._cut

        def as_part(*args: Any, **kwargs: Any) -> Any:
            if at < cut.begin:
                return (args[0],) if in_tuple else args[0]
            if at == cut.begin and not cut.is_first:
                args = (self._received, *args[1:])
            given = forward(*args, **kwargs)
            if at == cut.end - 1 and not cut.is_last:
                raise _Left((given[0] if in_tuple else given).contiguous())
            return given

        return as_part

    def _instead(self, module: Any, forward: Any) -> None:
        own = vars(module).get("forward")

        def undo() -> None:
            if own is None:
                vars(module).pop("forward", None)
            else:
                module.forward = own

        self._undo.append(undo)
        module.forward = forward

    def undo(self) -> None:
        """Modules compute as they did."""
        while self._undo:
            self._undo.pop()()


def _as_it_is(tensors: Any) -> Any:
    return tensors


def taken_apart(output: Any) -> tuple[Any, Callable[[Any], Any]]:
    """The tensors of a model's output, and what puts them together again: as it was, without the rest."""
    if not isinstance(output, dict):
        return output, _as_it_is
    kind: Any = type(output)
    names = [name for name, one in output.items() if isinstance(one, torch.Tensor)]
    return tuple(output[name] for name in names), lambda given: kind(
        **dict(zip(names, given if isinstance(given, tuple | list) else (given,), strict=True))
    )


def _zeros_like(given: Any) -> Any:
    """What is thrown away needs its shape alone, and no memory."""
    shape, dtype = given.shape, given.dtype

    def forward(*args: Any, **_kwargs: Any) -> Any:
        device = next((one.device for one in args if isinstance(one, torch.Tensor)), None)
        return torch.zeros((), dtype=dtype, device=device).expand(shape)

    return forward


def seen(model: Any, blocks: list[Any], part: Any) -> Forward:
    """One forward pass in evaluation: what runs before and after the blocks, which must run in order."""
    inside = {id(module) for block in blocks for module in block.modules()}
    around = {
        id(module) for module in model.modules() if any(block in [*module.modules()] for block in blocks)
    }
    before: dict[Any, Any] = {}
    after: set[Any] = set()
    order: list[int] = []
    tuples: list[bool] = []

    def on_layer(module: Any, _args: Any, given: Any) -> None:
        if order:
            after.add(module)
        elif isinstance(given, torch.Tensor):
            before[module] = given.detach()

    def on_block(at: int) -> Any:
        def look(_module: Any, args: Any, given: Any) -> None:
            order.append(at if args and isinstance(args[0], torch.Tensor) else -1)
            tuples.append(isinstance(given, tuple))

        return look

    hooks = [block.register_forward_hook(on_block(at)) for at, block in enumerate(blocks)]
    for module in model.modules():
        if id(module) not in inside | around and any(True for _ in module.parameters(recurse=False)):
            hooks.append(module.register_forward_hook(on_layer))  # noqa: PERF401
    try:
        output = _in_evaluation(model, lambda: call(model, part))
    finally:
        for hook in hooks:
            hook.remove()
    if order != list(range(len(blocks))):
        raise CallerMistake(
            f"a model that calls its {len(blocks)} blocks in the order {order}",
            expected="each block once, one after the other, with a tensor as its first argument",
            remedy="use strategy='fsdp', which follows any order",
        )
    # What runs on both sides is needed by all stages, as it is.
    once = {module: given for module, given in before.items() if module not in after}
    return Forward(output, once, frozenset(after - {*before}), in_tuple=tuples[0])


def proven(model: Any, blocks: list[Any], cuts: list[Cut], forward: Forward, part: Any) -> None:
    """Raises CallerMistake where the stages, one after the other, do not compute what the model computes."""

    def one_after_the_other() -> Any:
        sent: Any = None
        for cut in cuts:
            stage = Stage(model, blocks, cut, forward)
            try:
                keywords = part if isinstance(part, dict) else {}
                args = part if isinstance(part, tuple) else () if isinstance(part, dict) else (part,)
                more = {} if cut.is_first else {f"argument_{at}": one for at, one in enumerate(args)}
                sent = stage(*(args if cut.is_first else (sent,)), **more, **keywords)
            finally:
                stage.undo()
        return sent

    problem = ""
    try:
        found = _in_evaluation(model, one_after_the_other)
        problem = "" if _alike(found, taken_apart(forward.output)[0]) else "their output is another"
    except Exception as error:  # noqa: BLE001 - it is an answer
        problem = f"{type(error).__name__}: {error}"
    if problem:
        raise CallerMistake(
            f"a {type(model).__qualname__} that cannot be cut between its blocks: {problem}",
            expected="blocks that hand one tensor on, and need nothing else that was learned before them",
            remedy="use strategy='fsdp', which needs no cuts",
        )


def _in_evaluation(model: Any, run: Callable[[], Any]) -> Any:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            return run()
    finally:
        for module in training:
            module.training = True


def _alike(one: Any, other: Any) -> bool:
    if isinstance(other, torch.Tensor):
        few = _FEW_ROUNDINGS * torch.finfo(other.dtype).eps if other.is_floating_point() else 0.0
        return bool(torch.allclose(one, other, rtol=few, atol=few * float(other.abs().max())))
    if isinstance(other, tuple | list):
        return len(one) == len(other) and all(_alike(a, b) for a, b in zip(one, other, strict=True))
    return True


def owners(model: Any, blocks: list[Any], cuts: list[Cut], forward: Forward) -> dict[str, tuple[int, ...]]:
    """The stages that use each tensor. What no layer has for itself may be needed anywhere: all hold it."""
    used: dict[int, set[int]] = {}

    def use(module: Any, stage: int, *, recurse: bool) -> None:
        for one in (*module.parameters(recurse=recurse), *module.buffers(recurse=recurse)):
            used.setdefault(id(one), set()).add(stage)

    for stage, cut in enumerate(cuts):
        for block in blocks[cut.begin : cut.end]:
            use(block, stage, recurse=True)
    for module in forward.before:
        use(module, 0, recurse=False)
    for module in forward.after:
        use(module, len(cuts) - 1, recurse=False)
    everywhere = set(range(len(cuts)))
    held = {**named(model), **dict(model.named_buffers())}
    return {name: tuple(sorted(used.get(id(one), everywhere))) for name, one in held.items()}


def let_go(model: Any, owned: dict[str, tuple[int, ...]], rank: int) -> None:
    """Parameters of other stages keep their shape, and no memory."""
    gone = {id(one) for name, one in named(model).items() if rank not in owned[name]}
    made: dict[int, Any] = {}
    for module in model.modules():
        for name, one in module._parameters.items():  # noqa: SLF001
            if one is not None and id(one) in gone:
                made.setdefault(id(one), torch.nn.Parameter(one.to("meta"), requires_grad=one.requires_grad))
                module._parameters[name] = made[id(one)]  # noqa: SLF001
