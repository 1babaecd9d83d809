"""Counts the model FLOPs of whatever runs between `start_counting` and `stop`: a training step, as a rule.

torch has a counter of its own (`FlopCounterMode`). This one differs where that one is wrong or in the way:
attention and recurrent layers cost the same whichever kernel runs them, recomputation is kept apart, compiled
models are counted (they run eagerly meanwhile), higher-order operators pass, and what could not be counted is
named. It looks at shapes only: it changes no result, draws no random number and keeps no tensor.

What it cannot see are threads that the job itself starts, and kernels that are not launched by torch.
"""

# ruff: noqa: SLF001 - modes, schemas and dispatch keys have no public names in torch

import contextlib
import dataclasses
import functools
import importlib
import math
import os
import sys
import threading
import types
from collections import Counter
from collections.abc import Iterator
from typing import Any

from flatout.inside.blind_spots import BlindSpots, Waits
from flatout.inside.compiler_off import CompilerOff, hide_from_the_compiler
from flatout.inside.flop_formulas import FORMULAS, Arguments, Formula, Operator, tensors_in
from flatout.inside.work import Work
from flatout.levers.autograd_engine import ENGINE

# Frames between an operator and whoever called it, that belong to neither.
_BETWEEN = (__name__, "torch._ops", "torch._compile", "torch._dynamo", "torch.utils._python_dispatch")

_under_way: "list[FlopCount]" = []


@dataclasses.dataclass(frozen=True)
class FlopTotals:
    """What ran while counting."""

    flops: int
    """Of the model: forward and backward, each product once."""
    recomputed_flops: int
    """Forward work done again within a backward, by activation checkpointing."""
    by_operator: dict[str, int]
    """`flops`, by operator."""
    uncounted: dict[str, int]
    """Calls of what may have multiplied matrices out of sight: with any, the count may be too low."""
    operators: tuple[str, ...] = ()
    """Every operator that came by."""
    attention: tuple[int, ...] = ()
    """Of the largest attention, fused or written out: batch, heads, queries, keys, width of a head."""
    attentions: int = 0
    """How often such an attention was computed, forward."""
    moves: list[list[Any]] = dataclasses.field(default_factory=list, compare=False)
    """By operator, operations, bytes and kind of number: calls."""
    products: list[list[Any]] = dataclasses.field(default_factory=list, compare=False)
    """By operator, kind of number, products at once, m, n and k: calls."""
    lines: list[list[Any]] = dataclasses.field(default_factory=list, compare=False)
    """By operator, file, line and function: calls from there. Waits for the device count as operators."""


def start_counting(torch: Any) -> "FlopCount":
    """Begin to count in this thread and in the backward passes that it starts; call outside compiled code.

    Compiled models run eagerly until `stop`: they round, and need memory, as if they were not compiled.
    """
    _leave_forked_children_alone()
    return FlopCount(torch)


class FlopCount:
    """A count under way."""

    def __init__(self, torch: Any) -> None:
        self.in_backward = False
        """Set by the caller around a backward. Recomputation by `torch.utils.checkpoint` is found without it;
        that of others (a `Function` or a hook that runs forward code with gradients enabled) is not. Leave it
        False with create_graph=True, where the backward of a `Function` looks the same."""
        self._torch = torch
        self._lock = threading.Lock()
        self._by_operator: Counter[str] = Counter()
        self._uncounted: Counter[str] = Counter()
        self._recomputed_flops = 0
        self._attention: tuple[int, ...] = ()
        self._attentions: Counter[tuple[int, ...]] = Counter()
        # Width, rows and columns of the last batched product: of queries and keys, where a softmax follows.
        self._scores: tuple[int, int, int] = (0, 0, 0)
        self._operators: dict[Any, Operator] = {}
        self._work = Work(torch)
        self._registry = importlib.import_module("torch.utils.flop_counter").flop_registry
        fakes = importlib.import_module("torch._subclasses.fake_tensor")
        functional = importlib.import_module("torch._subclasses.functional_tensor")
        self._fake_types = (fakes.FakeTensor, functional.FunctionalTensor)
        self._disabled = torch._C._disabled_torch_dispatch_impl
        self._stack = _Stack(_mode_type()(self))
        # Fake tensors are the shadow of something else, unless the whole job runs on them.
        self._counts_fakes = any(isinstance(mode, fakes.FakeTensorMode) for mode in self._stack.modes())
        with contextlib.ExitStack() as undo:
            undo.callback(CompilerOff(torch).end)
            self._blind_spots = BlindSpots(torch, self._note)
            undo.callback(self._blind_spots.remove)
            self._waits = Waits(torch, self._work.called)
            undo.callback(self._waits.remove)
            self._stack.put_at_the_bottom()
            undo.callback(self._stack.take_off)
            self._undo = undo.pop_all()
        _under_way.append(self)

    def stop(self) -> FlopTotals:
        """Stop counting, leaving modes and compiler as they were found; a second call only answers again."""
        if self in _under_way:
            _under_way.remove(self)
            self._undo.close()
        by_operator, uncounted = dict(self._by_operator), dict(self._uncounted)
        seen = tuple(sorted({_shown(operator.name) for operator in self._operators.values()}))
        return FlopTotals(
            self._by_operator.total(),
            self._recomputed_flops,
            by_operator,
            uncounted,
            seen,
            self._attention,
            self._attentions[self._attention],
            self._work.moves(),
            self._work.products(),
            self._work.lines(),
        )

    def dispatch(self, func: Any, subclasses: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run one operator, and count it."""
        if self not in _under_way:
            return func(*args, **kwargs)
        if isinstance(func, self._torch._ops.HigherOrderOperator):
            return self._run_higher_order(func, args, kwargs)
        fake = any(issubclass(kind, self._fake_types) for kind in subclasses)
        if fake and not self._counts_fakes:
            return func(*args, **kwargs)
        if not fake and any(kind.__torch_dispatch__ is not self._disabled for kind in subclasses):
            # A subclass knows what it is made of; the operators that it runs come by here again.
            return NotImplemented
        try:
            operator = self._operator(func)
            kernel = None if fake else operator.kernel_to_open(args, kwargs)
        except Exception:  # noqa: BLE001 - a count that cannot be had never breaks a job
            self._note(str(func))
            return self._run(func, args, kwargs)
        self._look_for_attention(operator.name, args)
        if operator.formula is None:
            return self._run_without_formula(operator, kernel, args, kwargs)
        out = self._run(func, args, kwargs)
        arguments = {**dict(zip(operator.parameters, args, strict=False)), **kwargs}
        flops = self._count(operator.name, operator.formula, arguments, out)
        self._work.add(operator, args, kwargs, out, flops)
        return out

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Below the mode: what this calls in its turn does not come by, so nothing is counted twice."""
        with self._blind_spots.looked_after():
            return func(*args, **kwargs)

    def _run_without_formula(self, operator: Operator, kernel: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run it by its kernel and with the mode on, where that shows what it is made of."""
        before = self._counted()
        if kernel is None:
            out = self._run(operator.func, args, kwargs)
            self._work.add(operator, args, kwargs, out, 0)
        else:
            with self._stack.on_top():
                out = operator.func.redispatch(kernel, *args, **kwargs)
        if operator.is_suspect and self._counted() == before and tensors_in(self._torch, (args, kwargs)):
            self._note(operator.name)
        return out

    def _run_higher_order(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = f"higher_order::{func.name()}"
        formula = FORMULAS.get(name)
        if formula is not None:
            out = self._run(func, args, kwargs)
            self._count(name, formula, dict(zip(("query", "key", "value"), args, strict=False)), out)
            return out
        # Most run functions that they were given (a branch, a loop's body): what those do comes by.
        opened = [self._opened(value) for value in args]
        if all(ours is theirs for ours, theirs in zip(opened, args, strict=True)):
            self._note(name)
            return self._run(func, args, kwargs)
        return func(*opened, **kwargs)

    def _opened(self, value: Any) -> Any:
        if not isinstance(value, types.FunctionType | types.MethodType | self._torch.nn.Module):
            return value

        def opened(*args: Any, **kwargs: Any) -> Any:
            with self._stack.on_top():
                return value(*args, **kwargs)

        return opened

    def _count(self, name: str, formula: Formula, arguments: Arguments, out: Any) -> int:
        """Its operations; 0 where they cannot be had."""
        try:
            if any(_is_sparse(tensor) for tensor in tensors_in(self._torch, arguments)):
                self._note(name)
                return 0
            flops = formula(arguments, out)
        except Exception:  # noqa: BLE001 - a count that cannot be had never breaks a job
            self._note(name)
            return 0
        again = self._is_recomputation()
        # The engine runs a backward in a thread for each device.
        with self._lock:
            if again:
                self._recomputed_flops += flops
            else:
                self._by_operator[_shown(name)] += flops
        return flops

    def _look_for_attention(self, name: str, args: Any) -> None:
        found: tuple[int, ...] = ()
        with contextlib.suppress(AttributeError, IndexError, ValueError):
            if name == "aten::bmm":
                self._scores = (args[0].shape[-1], args[0].shape[-2], args[1].shape[-1])
            elif name == "aten::_softmax" and args[0].dim() == 4 and self._scores[1:] == args[0].shape[-2:]:
                found = (*args[0].shape, self._scores[0])
            elif name.startswith("aten::_scaled_dot_product") and "backward" not in name:
                batch, heads, queries, width = args[0].shape
                found = (batch, heads, queries, args[1].shape[-2], width)
        if found:
            self._attentions[found] += 1
            self._attention = max(self._attention, found, key=lambda shape: math.prod(shape or (0,)))

    def _operator(self, func: Any) -> Operator:
        operator = self._operators.get(func)
        if operator is None:
            operator = self._operators[func] = Operator(self._torch, func, self._registry)
        return operator

    def _counted(self) -> int:
        return self._by_operator.total() + self._recomputed_flops

    def _note(self, name: str) -> None:
        with self._lock:
            self._uncounted[_shown(name)] += 1

    def _is_recomputation(self) -> bool:
        """Whether forward code runs within a backward: gradients are enabled, and Python code called it.

        With create_graph=True gradients are enabled too, but there the engine itself calls the operators.
        """
        if not self._torch.is_grad_enabled() or self._torch._C._current_graph_task_id() == -1:
            return False
        by_engine = True
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code.co_name != ENGINE:
            module = frame.f_globals.get("__name__", "")
            if module == "torch.utils.checkpoint":
                return True
            by_engine = by_engine and module.startswith(_BETWEEN)
            frame = frame.f_back
        return self.in_backward and not by_engine


class _Stack:
    """Puts a mode on torch's stack of dispatch modes, and takes it off from wherever it is by then.

    Modes are pushed and popped bare. Their own way in and out also saves and restores flags of the process in
    nesting order, which taps do not keep: a flag left behind would turn the compiler off for good.
    """

    def __init__(self, mode: Any) -> None:
        self._mode = mode
        self._torchs = importlib.import_module("torch.utils._python_dispatch")

    def modes(self) -> list[Any]:
        """The stack of this thread, topmost last."""
        return list(self._torchs._get_current_dispatch_mode_stack())

    def put_at_the_bottom(self) -> None:
        """Below the user's modes: one that is left before counting ends takes off the topmost, unseen."""
        above = []
        while (modes := self.modes()) and not hasattr(modes[-1], "_mode_key"):
            above.append(self._torchs._pop_mode())
        for mode in (self._mode, *reversed(above)):
            self._torchs._push_mode(mode)

    def take_off(self) -> None:
        """Leave every other mode in its place."""
        above: list[Any] = []
        if self._mode not in self.modes():
            return
        while (top := self._torchs._pop_mode()) is not self._mode:
            above.append(top)
        for mode in reversed(above):
            self._torchs._push_mode(mode)

    @contextlib.contextmanager
    def on_top(self) -> Iterator[None]:
        """Within the mode's own dispatch, where torch has set it aside: let inner operators come by."""
        self._torchs._push_mode(self._mode)
        try:
            yield
        finally:
            self._torchs._pop_mode()


@functools.cache
def _mode_type() -> Any:
    """The dispatch mode that hands everything to a count; made late, since torch is not ours to import."""
    base: Any = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode

    class CountingMode(base):  # type: ignore[misc]
        supports_higher_order_operators = True

        def __init__(self, count: FlopCount) -> None:
            super().__init__()
            self._count = count

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            # Else the compiler gives up where it sees the mode, also for torch's own use of it.
            return True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return self._count.dispatch(func, types, args, kwargs or {})

    hide_from_the_compiler(CountingMode)
    return CountingMode


def _is_sparse(tensor: Any) -> bool:
    return "sparse" in str(tensor.layout)


def _shown(name: str) -> str:
    return name.replace("::", ".")


@functools.cache
def _leave_forked_children_alone() -> None:
    """A loader's worker forked while counting would carry the mode through its whole life."""
    os.register_at_fork(after_in_child=lambda: [count.stop() for count in list(_under_way)])
