"""What the operators of a step move and multiply, and which lines of the source call them."""

import contextlib
import math
import sys
from collections import Counter
from types import FrameType
from typing import Any

from flatout.inside.flop_formulas import Operator, tensors_in
from flatout.levers.places import users_frame

# Where the two factors of a product stand among an operator's arguments.
_FACTORS = {
    "aten::mm": 0,
    "aten::addmm": 1,
    "aten::bmm": 0,
    "aten::baddbmm": 1,
    "aten::_scaled_mm": 0,
}
_CONVOLUTIONS = ("aten::convolution", "aten::cudnn_convolution", "aten::_convolution")
# They make room, and move nothing.
_MOVE_NOTHING = (
    "aten::empty",
    "aten::new_empty",
    "aten::_unsafe_view",
    "aten::lift_fresh",
    "aten::alias",
    "profiler::",
)

# They read as much as they give, however large what they pick from is; or read nothing at all.
_PICK_SOME = ("aten::embedding", "aten::index", "aten::index_select", "aten::gather")
_ONLY_WRITE = ("aten::zero", "aten::fill", "aten::zeros_like", "aten::ones_like", "aten::full_like")
_READS_LOSSES = "flatout.inside.deferred"


class Work:
    """A table of a step's operators; equal calls in one row."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._views: dict[Any, bool] = {}
        # Operator, operations, bytes read and written, and the kind of number.
        self._moves: Counter[tuple[str, int, int, str]] = Counter()
        # Operator, file, line and function of whoever called it.
        self._lines: Counter[tuple[str, str, int, str]] = Counter()
        # Operator, kind of number, products at once, rows, columns, and the length of each sum.
        self._products: Counter[tuple[str, str, int, int, int, int]] = Counter()

    def add(self, operator: Operator, args: Any, kwargs: Any, out: Any, flops: int) -> None:
        """One call."""
        if self._only_looks(operator):
            return
        self.called(operator.name)
        with contextlib.suppress(Exception):  # a tensor that does not say what it is counts nowhere
            read, written = tensors_in(self._torch, (args, kwargs)), tensors_in(self._torch, out)
            moved = _bytes(written) if operator.name in _ONLY_WRITE else _bytes(read) + _bytes(written)
            if operator.name in _PICK_SOME:
                moved = 2 * _bytes(written) + _bytes([one for one in read if not one.is_floating_point()])
            dtype = _dtype(written) or _dtype(read)
            self._moves[operator.name, flops, moved, dtype] += 1
            shape = _product(operator.name, args, out)
            if shape is not None:
                self._products[(operator.name, _dtype(read), *shape)] += 1

    def called(self, name: str) -> None:
        """Note which line of the user's called something; within a backward, mostly nobody knows."""
        with contextlib.suppress(Exception):
            frame = users_frame(self._torch)
            if frame is not None and not _is_our_own(frame):
                code = frame.f_code
                self._lines[name, code.co_filename, frame.f_lineno, code.co_qualname] += 1

    def lines(self) -> list[list[Any]]:
        """Rows: operator, file, line, function, calls."""
        return [[*key, calls] for key, calls in self._lines.items()]

    def moves(self) -> list[list[Any]]:
        """Rows: operator, operations, bytes, kind of number, calls."""
        return [[*key, calls] for key, calls in self._moves.items()]

    def products(self) -> list[list[Any]]:
        """Rows: operator, kind of number, products at once, m, n, k, calls."""
        return [[*key, calls] for key, calls in self._products.items()]

    def _only_looks(self, operator: Operator) -> bool:
        """Whether it gives another view of what is there, or mere room."""
        known = self._views.get(operator.func)
        if known is None:
            returns = operator.func._schema.returns  # noqa: SLF001
            is_view = any(one.alias_info is not None and not one.alias_info.is_write for one in returns)
            known = self._views[operator.func] = is_view or operator.name.startswith(_MOVE_NOTHING)
        return known


def _is_our_own(users: FrameType) -> bool:
    """Whether a tap of ours called it, to read the loss, on its way from the user's frame."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None and frame is not users:
        if frame.f_globals.get("__name__") == _READS_LOSSES:
            return True
        frame = frame.f_back
    return False


def _bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _dtype(tensors: Any) -> str:
    return next((str(one.dtype).removeprefix("torch.") for one in tensors if one.is_floating_point()), "")


def _product(name: str, args: Any, out: Any) -> tuple[int, int, int, int] | None:
    """Products at once, rows, columns, and the length of each sum."""
    first = _FACTORS.get(name)
    if first is not None:
        left, right = args[first].shape, args[first + 1].shape
        return (math.prod(left[:-2]) if len(left) > 2 else 1), left[-2], right[-1], left[-1]
    if name in _CONVOLUTIONS:
        weight = args[1].shape
        return 1, out.numel() // max(1, weight[0]), weight[0], math.prod(weight[1:])
    return None
