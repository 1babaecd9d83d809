"""The forms in which people write attention by hand, as they look in a captured graph."""

import dataclasses
import math
from typing import Any

# What stands for "never look here" when it is added to, or put in place of, a score.
AS_GOOD_AS_NEVER = -1e4

_PRODUCTS = {"matmul", "bmm", "__matmul__"}
_CASTS = {"float", "half", "bfloat16", "double", "to", "type", "type_as", "contiguous"}
_FILLS = {"masked_fill", "masked_fill_"}
_TIMES = {"mul", "mul_", "__mul__", "imul", "multiply"}
_OVER = {"truediv", "div", "div_", "__truediv__", "itruediv", "divide", "true_divide"}
_PLUS = {"add", "add_", "__add__", "iadd"}


@dataclasses.dataclass(frozen=True)
class Written:
    """One attention, as it was written."""

    chain: tuple[Any, ...]
    """Its nodes, the last first: from the product with the values back to the scores."""
    query: "Operand"
    key: "Operand"
    value: "Operand"
    weights: Any
    """The node with what is multiplied with the values, before any dropout."""
    scale: float
    dropout: float
    fills: tuple["Fill", ...]
    """Places that are not looked at."""
    bias: Any
    """A node that is added to the scores, or None."""
    out_order: tuple[int, ...] | None
    """How the result's dimensions lie, where not (..., position, feature)."""

    @property
    def out(self) -> Any:
        """Its last node."""
        return self.chain[0]

    @property
    def fill_value(self) -> float:
        """What masked scores become, the same for all masks."""
        return self.fills[0].value if self.fills else -math.inf


@dataclasses.dataclass(frozen=True)
class Operand:
    """A node, and the order in which its dimensions are (..., position, feature)."""

    node: Any
    order: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Fill:
    """A mask of scores: where it is `where`, they become `value`."""

    mask: Any
    where: bool
    value: float


def match_attention(out: Any) -> Written | None:
    """The attention of which this node is the last, or None."""
    product = _product(out)
    if product is None:
        return None
    chain = [out]
    dropout, node = 0.0, product.left.node
    while (name := name_of(node)) in _CASTS or name == "dropout":
        if not _is_used_once(node):
            return None
        if name == "dropout":
            p = _dropout(node)
            if p is None or dropout:
                return None
            dropout = p
        chain.append(node)
        node = _input(node)
    if name_of(node) != "softmax" or not _is_over_the_last(node) or not _is_used_once(node):
        return None
    chain.append(node)
    weights, node = node, _input(node)
    scale, fills, bias = 1.0, [], None
    while (scores := _product(node)) is None:
        if not _is_node(node) or not _is_used_once(node):
            return None
        chain.append(node)
        name = name_of(node)
        if name in _CASTS:
            node = _input(node)
        elif name in _FILLS or name == "where":
            fill = _fill(node)
            if fill is None:
                return None
            fills.append(fill[0])
            node = fill[1]
        elif name in _TIMES | _OVER and (factor := _factor(node, name)) is not None:
            scale *= factor[0]
            node = factor[1]
        elif name in _PLUS and bias is None and scale == 1.0 and _is_plain_sum(node) and not fills:
            left, right = node.args
            if not (_is_node(left) and _is_node(right)):
                return None
            # The scores are on one side; which, shows in what lies behind it.
            scored, bias = (left, right) if _leads_to_product(left) else (right, left)
            node = scored
        else:
            return None
    if not _is_used_once(node) or scale <= 0 or len({fill.value for fill in fills}) > 1:
        return None
    if bias is not None and fills and fills[0].value != -math.inf:
        return (
            None  # in a row with nothing to see, what was added is lost in rounding; not so in a fused call
        )
    if product.order_left is not None or scores.out_order is not None:
        return None  # weights that were turned around between the two products
    chain.append(node)
    return Written(
        chain=tuple(chain),
        query=scores.left,
        key=scores.right_transposed,
        value=product.right,
        weights=weights,
        scale=scale,
        dropout=dropout,
        fills=tuple(fills),
        bias=bias,
        out_order=product.out_order,
    )


@dataclasses.dataclass(frozen=True)
class _Product:
    """left (..., i, d) times right (..., d, j), whichever way it was written."""

    left: Operand
    right: Operand
    right_transposed: Operand
    out_order: tuple[int, ...] | None = None
    order_left: tuple[int, ...] | None = None


def _product(node: Any) -> _Product | None:
    name = name_of(node)
    if name in _PRODUCTS and len(node.args) >= 2 and all(map(_is_node, node.args[:2])):
        left, right = node.args[:2]
        return _Product(Operand(left), Operand(right), Operand(right, order=(-1,)))
    if name == "einsum" and len(node.args) >= 2 and isinstance(node.args[0], str):
        operands = node.args[1] if isinstance(node.args[1], list | tuple) else node.args[1:]
        if len(operands) == 2 and all(map(_is_node, operands)):
            return _einsum(node.args[0], *operands)
    return None


def _einsum(equation: str, left: Any, right: Any) -> _Product | None:
    """A product of matrices in Einstein's notation, over whatever letters."""
    ins, arrow, out = equation.replace(" ", "").partition("->")
    first, comma, second = ins.partition(",")
    if not arrow or not comma or "." in equation:
        return None
    if any(len(set(word)) != len(word) for word in (first, second, out)):
        return None
    batch = [letter for letter in first if letter in second and letter in out]
    summed = [letter for letter in first if letter in second and letter not in out]
    rows = [letter for letter in first if letter not in second]
    columns = [letter for letter in second if letter not in first]
    if len(summed) != 1 or len(rows) != 1 or len(columns) != 1 or len(out) != len(batch) + 2:
        return None
    batch.sort(key=out.index)
    (d,), (i,), (j,) = summed, rows, columns
    whole = [*batch, i, j]
    return _Product(
        left=Operand(left, _order(first, [*batch, i, d])),
        right=Operand(right, _order(second, [*batch, d, j])),
        right_transposed=Operand(right, _order(second, [*batch, j, d])),
        out_order=_order("".join(whole), list(out)),
        order_left=_order(first, [*batch, i, d]),
    )


def _order(have: str, want: list[str]) -> tuple[int, ...] | None:
    order = tuple(have.index(letter) for letter in want)
    return None if order == tuple(range(len(have))) else order


def put_in_order(graph: Any, operand: Operand) -> Any:
    """A node with the operand's dimensions in order."""
    if operand.order is None:
        return operand.node
    if operand.order == (-1,):
        return graph.call_method("transpose", (operand.node, -2, -1))
    return graph.call_method("permute", (operand.node, *operand.order))


def in_order(operand: Operand, tensor: Any) -> Any:
    """The same of its value."""
    if operand.order is None:
        return tensor
    return tensor.transpose(-2, -1) if operand.order == (-1,) else tensor.permute(operand.order)


def _is_node(value: Any) -> bool:
    return hasattr(value, "op") and hasattr(value, "users")


def _is_used_once(node: Any) -> bool:
    return len(node.users) == 1


def name_of(node: Any) -> str:
    """What a node calls, by the last part of its name."""
    if not _is_node(node):
        return ""
    if node.op == "call_method":
        return str(node.target)
    if node.op == "call_function":
        return str(getattr(node.target, "__name__", ""))
    return ""


def _argument(node: Any, place: int, name: str, default: Any = None) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def _input(node: Any) -> Any:
    return _argument(node, 0, "input")


def _is_plain_sum(node: Any) -> bool:
    return len(node.args) == 2 and not node.kwargs  # `alpha` multiplies the second


def _dropout(node: Any) -> float | None:
    # `F.dropout` trains unless told otherwise; `torch.dropout` has to be told, by another name.
    training = _argument(node, 2, "training", default=node.kwargs.get("train"))
    if training is None and getattr(node.target, "__module__", "") == "torch.nn.functional":
        training = True
    p = _argument(node, 1, "p", default=0.5)
    if not isinstance(p, int | float) or not isinstance(training, bool) or p >= 1:
        return None
    return float(p) if training else 0.0


def _is_over_the_last(softmax: Any) -> bool:
    dim = _argument(softmax, 1, "dim")
    scores = _input(softmax)
    example = scores.meta.get("example_value") if _is_node(scores) else None
    return dim == -1 or (example is not None and dim == example.dim() - 1)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _factor(node: Any, name: str) -> tuple[float, Any] | None:
    """A number with which scores are multiplied, and the scores."""
    if len(node.args) != 2 or node.kwargs:
        return None
    left, right = node.args
    if (number := _number(right)) is not None and _is_node(left):
        if name in _OVER:
            return (1.0 / number, left) if number else None
        return number, left
    if name in _TIMES and (number := _number(left)) is not None and _is_node(right):
        return number, right
    return None


def _fill(node: Any) -> tuple[Fill, Any] | None:
    """What a mask does to scores, and the scores."""
    if name_of(node) == "where":
        if len(node.args) != 3:
            return None
        mask, kept, other = node.args
        if (value := _number(other)) is not None and _is_node(kept):
            fill, scores = Fill(mask, where=False, value=value), kept
        elif (value := _number(kept)) is not None and _is_node(other):
            fill, scores = Fill(mask, where=True, value=value), other
        else:
            return None
    else:
        mask, number = _argument(node, 1, "mask"), _number(_argument(node, 2, "value"))
        if number is None:
            return None
        fill, scores = Fill(mask, where=True, value=number), _input(node)
    return (fill, scores) if _is_node(mask) and fill.value <= AS_GOOD_AS_NEVER else None


def _leads_to_product(node: Any) -> bool:
    for _ in range(6):
        if not _is_node(node) or not node.args:
            return False
        if _product(node) is not None:
            return True
        if name_of(node) not in _CASTS | _TIMES | _OVER | _FILLS:
            return False
        node = node.args[0]
    return False
