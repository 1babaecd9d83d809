"""Reads a model's source and its caller's: do the logits of its head go into a cross entropy alone?

Two forms are known. The forward returns what the head gives, and the script hands that to the loss, whole and
in order. Or the forward computes the loss itself, and returns logits that its caller leaves alone. Whatever
else is done to them, or might be, is a reason to keep away: `NotProven` says which.
"""

import ast
import dataclasses
import inspect
import linecache
import textwrap
import types
from collections.abc import Iterator
from types import FrameType, SimpleNamespace
from typing import Any, Literal

from flatout.levers.loss_reading import FACTS, Checks, Reading, resolved, scope_of, uses_of

# Views that keep rows in their order; transposes, which must be the last.
_IN_ORDER = {"view", "reshape", "flatten"}
_TRANSPOSES = {"transpose", "permute"}
_SEES_ALL_NAMES = {"locals", "vars", "globals", "eval", "exec"}
_OF_A_HEAD = {"weight", "bias", "in_features", "out_features"}


class NotProven(Exception):
    """The logits may go elsewhere; the message says where."""


@dataclasses.dataclass(frozen=True)
class Form:
    """What becomes of the logits in a forward: they are its output, or it computes the loss of them."""

    kind: Literal["output", "loss"]
    # Where in the tuple that a forward with a loss returns; None where it does not return them.
    place: int | None = None


def form_of(root: Any, head: Any, torch: Any) -> Form:
    """What the forward of a root does with what its head gives; raises NotProven."""
    try:
        return _Forward(root, head, torch).read()
    except (OSError, TypeError, SyntaxError, ValueError, RecursionError) as error:
        raise NotProven("the source of the model's forward cannot be read") from error


def caller_of(frame: FrameType, root: Any, head: Any, form: Form, torch: Any) -> Checks:
    """What must still hold whenever the caller comes here again; raises NotProven."""
    try:
        reading = _Caller(frame, root, head, torch)
        checks = reading.whole_into_the_loss() if form.kind == "output" else reading.leaves(form.place)
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        raise NotProven("the source that calls the model cannot be read") from error
    if checks is None:
        where = f"line {frame.f_lineno} of {frame.f_code.co_filename.rpartition('/')[2]}"
        use = "does not show that nothing but a cross entropy gets the logits"
        raise NotProven(f"{where} {use if form.kind == 'output' else 'may use the logits'}")
    return checks


class _Forward:
    def __init__(self, root: Any, head: Any, torch: Any) -> None:
        self._root, self._head, self._nn = root, head, torch.nn
        self._path = _only_path(root, head)
        _insist_on_no_hooks(root, torch)
        forward: Any = type(root).forward
        if "forward" in vars(root) or not isinstance(forward, types.FunctionType):
            raise NotProven("the model's forward was replaced")
        code = forward.__code__
        tree = ast.parse("".join(linecache.getlines(code.co_filename)))
        function = scope_of(tree, code, max(line for _, _, line in code.co_lines() if line is not None))
        if not isinstance(function, ast.FunctionDef) or function.decorator_list or not function.args.args:
            raise NotProven("the model's forward is decorated")
        self._function = function
        self._parents = {
            child: parent for parent in ast.walk(function) for child in ast.iter_child_nodes(parent)
        }
        self._self = function.args.args[0].arg
        # Names and dotted names resolve as in a frame of the forward, without one.
        self._frame: Any = SimpleNamespace(f_locals={self._self: root}, f_globals=forward.__globals__)
        self._names: set[str] = set()
        self._losses = 0
        # Of each return of the logits: alone, or its place in a tuple of so many.
        self._returned: list[tuple[int, int] | None] = []

    def read(self) -> Form:
        for node in ast.walk(self._function):
            if isinstance(node, ast.Global | ast.Nonlocal | ast.Lambda | ast.Try | ast.Yield) or (
                isinstance(node, ast.FunctionDef) and node is not self._function
            ):
                raise NotProven(f"the model's forward is no plain function: {type(node).__name__.lower()}")
            if isinstance(node, ast.Name) and (
                node.id in _SEES_ALL_NAMES or (node.id == self._self and not isinstance(node.ctx, ast.Load))
            ):
                raise NotProven(f"the model's forward uses {node.id!r}")
        calls = [
            node
            for node in ast.walk(self._function)
            if isinstance(node, ast.Call) and resolved(node.func, self._frame) is self._head
        ]
        if not calls:
            raise NotProven("the model's forward does not call its head itself")
        self._insist_on_no_other_use({call.func for call in calls})
        for call in calls:
            if len(call.args) != 1 or call.keywords or isinstance(call.args[0], ast.Starred):
                raise NotProven("the model's head is called with more than its input")
            self._follow(call)
        return self._form()

    def _form(self) -> Form:
        returns = [node for node in ast.walk(self._function) if isinstance(node, ast.Return)]
        if not self._losses:
            if self._returned != [None] * len(returns):
                raise NotProven("the model's forward returns more than its logits")
            return Form("output")
        if not self._returned:
            return Form("loss")
        if None in self._returned or len(self._returned) != len(returns) or len(set(self._returned)) != 1:
            raise NotProven("the model's forward returns its logits in several ways")
        [place] = {one for one in self._returned if one is not None}
        return Form("loss", place[0])

    def _insist_on_no_other_use(self, proven: set[ast.expr]) -> None:
        """Another method, or another class of its kin, could reach the head too."""
        name = self._path.rpartition(".")[2]
        places = {(node.lineno, node.col_offset) for node in proven}
        kin = [one for one in type(self._root).__mro__ if one not in (object, self._nn.Module)]
        for kind in kin:
            lines, first = inspect.getsourcelines(kind)
            tree = ast.parse(textwrap.dedent("".join(lines)))
            shift = len(lines[0]) - len(lines[0].lstrip())
            for node in _outside_of_init(tree):
                if isinstance(node, ast.Constant) and node.value == name:
                    raise NotProven(f"{kind.__name__} names {name!r} in a string")
                if not isinstance(node, ast.Attribute) or node.attr != name:
                    continue
                if (node.lineno + first - 1, node.col_offset + shift) not in places:
                    raise NotProven(f"{kind.__name__} uses {name!r} in line {node.lineno + first - 1} too")

    def _follow(self, value: ast.expr) -> None:
        """Every way that a value takes must be known."""
        parent = self._parents.get(value)
        if isinstance(parent, ast.Return):
            self._returned.append(None)
        elif isinstance(parent, ast.Tuple) and isinstance(self._parents.get(parent), ast.Return):
            self._returned.append((parent.elts.index(value), len(parent.elts)))
        elif isinstance(parent, ast.Assign) and parent.targets and isinstance(parent.targets[0], ast.Name):
            if len(parent.targets) != 1:
                raise self._elsewhere(value)
            self._follow_name(parent.targets[0].id)
        else:
            self._follow_into_the_loss(value)

    def _follow_name(self, name: str) -> None:
        if name in self._names:
            return
        self._names.add(name)
        for use in uses_of(name, self._function, self._parents):
            self._follow(use)

    def _follow_into_the_loss(self, value: ast.expr) -> None:
        parent = self._parents.get(value)
        if isinstance(parent, ast.Attribute):
            called = self._parents.get(parent)
            if parent.attr in FACTS:
                return
            if isinstance(called, ast.Call) and called.func is parent:
                if parent.attr in _IN_ORDER:
                    self._follow(called)
                    return
                if parent.attr in _TRANSPOSES and self._is_loss(self._parents.get(called), called):
                    return
        if not self._is_loss(parent, value):
            raise self._elsewhere(value)

    def _is_loss(self, call: ast.AST | None, value: ast.expr) -> bool:
        """A plain mean cross entropy with this as its input."""
        if not isinstance(call, ast.Call) or call.args[:1] != [value] or len(call.args) > 2:
            return False
        called = call.func
        if isinstance(called, ast.Attribute) and called.attr == "cross_entropy":
            if resolved(called.value, self._frame) is not self._nn.functional:
                return False
        elif not is_plain(resolved(called, self._frame), self._nn):
            return False
        for keyword in call.keywords:
            is_mean = isinstance(keyword.value, ast.Constant) and keyword.value.value == "mean"
            if keyword.arg not in ("target", "ignore_index") and not (keyword.arg == "reduction" and is_mean):
                raise NotProven(f"the cross entropy has {keyword.arg}, which is not computed in chunks")
        self._losses += 1
        return True

    def _elsewhere(self, value: ast.expr) -> NotProven:
        return NotProven(f"in line {value.lineno} of the model's source the logits go elsewhere than a loss")


class _Caller(Reading):
    def __init__(self, frame: FrameType, root: Any, head: Any, torch: Any) -> None:
        super().__init__(frame, root, torch)
        self._classes = int(head.out_features)
        lines = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
        tree = ast.parse("".join(lines))
        self._differentiates_twice = any(
            isinstance(node, ast.keyword) and node.arg == "create_graph" for node in ast.walk(tree)
        )

    def whole_into_the_loss(self) -> Checks | None:
        """Whether the output goes into a loss alone, through views that leave every row where it was."""
        return None if self._differentiates_twice else self.read()

    def leaves(self, place: int | None) -> Checks | None:
        """Whether one part of what the call returns is left alone."""
        if self._differentiates_twice:
            return None
        if place is None:
            return []
        call = self._root_call()
        parent = self._parents.get(call) if call is not None else None
        if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
            target = parent.targets[0]
            if isinstance(target, ast.Tuple) and not any(isinstance(one, ast.Starred) for one in target.elts):
                name = target.elts[place] if place < len(target.elts) else None
                return [] if isinstance(name, ast.Name) and not list(self._uses(name.id)) else None
        if isinstance(parent, ast.Subscript) and isinstance(parent.slice, ast.Constant):
            wanted = parent.slice.value
            return [] if isinstance(wanted, int) and 0 <= wanted != place else None
        return None

    def _goes_into_the_loss(self, value: ast.expr) -> bool:
        """As for any output, but a view must be one that is certain to copy nothing."""
        parent = self._parents.get(value)
        if isinstance(parent, ast.Subscript) and parent.value is value:
            return False
        if isinstance(parent, ast.Attribute) and parent.attr not in FACTS:
            call = self._parents.get(parent)
            if not isinstance(call, ast.Call) or call.func is not parent or call.keywords:
                return False
            if parent.attr in ("view", "reshape"):
                is_flat = len(call.args) == 2 and self._is_number_of_classes(call.args[1])
                return is_flat and self._goes_into_the_loss(call)
            after = self._parents.get(call)
            is_last = isinstance(after, ast.Call) and after.args[:1] == [call]
            numbers = [_whole_number(argument) for argument in call.args]
            swaps = {"transpose": [[1, 2], [2, 1]], "permute": [[0, 2, 1]]}.get(parent.attr, [])
            return is_last and numbers in swaps and super()._goes_into_the_loss(call)
        return super()._goes_into_the_loss(value)

    def _is_number_of_classes(self, argument: ast.expr) -> bool:
        if isinstance(argument, ast.Call):  # logits.size(-1)
            size = argument.func
            last = [_whole_number(one) for one in argument.args] == [-1]
            is_size = isinstance(size, ast.Attribute) and size.attr == "size"
            return last and is_size and isinstance(size, ast.Attribute) and self._is_the_output(size.value)
        if isinstance(argument, ast.Subscript):  # logits.shape[-1]
            shape = argument.value
            is_shape = isinstance(shape, ast.Attribute) and shape.attr == "shape"
            if _whole_number(argument.slice) != -1 or not is_shape or not isinstance(shape, ast.Attribute):
                return False
            return self._is_the_output(shape.value)
        if _whole_number(argument) == self._classes:
            return True
        value = resolved(argument, self._frame)
        if type(value) is not int or value != self._classes:
            return False
        self._checks.append((argument, value))
        return True

    def _is_the_output(self, value: ast.expr) -> bool:
        return isinstance(value, ast.Name) and value.id in self._names


def is_plain(loss: Any, nn: Any) -> bool:
    """A mean cross entropy without weights and smoothing, as an object."""
    return (
        type(loss) is nn.CrossEntropyLoss
        and loss.weight is None
        and loss.reduction == "mean"
        and not loss.label_smoothing
    )


def _outside_of_init(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those of constructors, and but heads of which only the weight or a size is asked."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        yield node
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef) and child.name == "__init__":
                continue
            if isinstance(node, ast.Attribute) and node.attr in _OF_A_HEAD and child is node.value:
                continue
            todo.append(child)


def _only_path(root: Any, head: Any) -> str:
    paths = [name for name, module in root.named_modules(remove_duplicate=False) if module is head]
    if len(paths) != 1:
        raise NotProven("the model has its head in several places")
    for module in root.modules():
        for value in vars(module).values():
            values = value.values() if isinstance(value, dict) and value is not module._modules else [value]  # noqa: SLF001
            for one in values:
                inside = one if isinstance(one, list | tuple) else [one]
                if any(held is head or held is root for held in inside):
                    raise NotProven("a module of the model holds its head, or the model, by another name")
    return str(paths[0])


def _insist_on_no_hooks(root: Any, torch: Any) -> None:
    everywhere = torch.nn.modules.module
    if root._forward_hooks or root._backward_hooks or everywhere._global_forward_hooks:  # noqa: SLF001
        raise NotProven("a hook of the script's sees what the model returns")


def _whole_number(node: ast.expr) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _whole_number(node.operand)
        return -inner if inner is not None else None
    is_int = isinstance(node, ast.Constant) and type(node.value) is int
    return node.value if is_int and isinstance(node, ast.Constant) and isinstance(node.value, int) else None
