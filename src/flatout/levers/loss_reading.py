"""Reads the source around a call of the model: is the loss all that its output goes into?

Where it is, nobody but the loss sees in which precision the output comes, and the loss may take it as the
model made it. Where anything else gets it (a metric, a print, a function of the script's own), or the source
does not say, the answer is no.
"""

import ast
import linecache
import types
from collections.abc import Iterator
from types import FrameType
from typing import Any

_FACTS = {"shape", "size", "dim", "ndim", "numel", "device", "requires_grad"}
_VIEWS = {"view", "reshape", "flatten", "transpose", "permute", "contiguous", "squeeze", "unsqueeze"}
_SEES_ALL_NAMES = {"locals", "vars", "globals", "eval", "exec"}
_MISSING = object()

# A loss that is an object of the script's: its name in the source, and which object it was.
Checks = list[tuple[ast.expr, Any]]


def goes_into_the_loss_alone(frame: FrameType, root: Any, torch: Any) -> Checks | None:
    """What must still hold whenever the frame comes here again; None where the output goes elsewhere."""
    try:
        return _Reading(frame, root, torch).read()
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def still_holds(checks: Checks, frame: FrameType) -> bool:
    """Whether the names of losses still stand for the same objects."""
    return all(resolved(expression, frame) is expected for expression, expected in checks)


def resolved(expression: ast.expr, frame: FrameType) -> Any:
    """What a name or a dotted name stands for in a frame, found without running any of the script's code."""
    if isinstance(expression, ast.Name):
        return frame.f_locals.get(expression.id, frame.f_globals.get(expression.id, _MISSING))
    if isinstance(expression, ast.Attribute):
        owner = resolved(expression.value, frame)
        if isinstance(owner, types.ModuleType):
            return vars(owner).get(expression.attr, _MISSING)
        own = getattr(owner, "__dict__", {})
        return own.get(expression.attr, own.get("_modules", {}).get(expression.attr, _MISSING))
    return _MISSING


class _Reading:
    def __init__(self, frame: FrameType, root: Any, torch: Any) -> None:
        self._frame = frame
        self._root = root
        self._torch = torch
        code = frame.f_code
        tree = ast.parse("".join(linecache.getlines(code.co_filename, frame.f_globals)))
        self._scope = _scope(tree, code, frame.f_lineno)
        self._parents = {
            child: parent for parent in ast.walk(self._scope) for child in ast.iter_child_nodes(parent)
        }
        self._names: set[str] = set()
        self._checks: Checks = []

    def read(self) -> Checks | None:
        line = self._frame.f_lineno
        calls = [
            node
            for node in ast.walk(self._scope)
            if isinstance(node, ast.Call)
            and node.lineno <= line <= (node.end_lineno or node.lineno)
            and self._is_root(resolved(node.func, self._frame))
        ]
        if len(calls) != 1 or self._names_are_seen_elsewhere():
            return None
        return self._checks if self._goes_into_the_loss(calls[0]) else None

    def _is_root(self, value: Any) -> bool:
        if value is self._root:
            return True
        wrapped = getattr(value, "__dict__", {}).get("_modules", {}).get("module")
        return wrapped is not None and wrapped is self._root

    def _names_are_seen_elsewhere(self) -> bool:
        return any(
            isinstance(node, ast.Global | ast.Nonlocal)
            or (isinstance(node, ast.Name) and node.id in _SEES_ALL_NAMES)
            for node in ast.walk(self._scope)
        )

    def _goes_into_the_loss(self, value: ast.expr) -> bool:
        """Whether this expression's value ends in a loss, whichever way it takes."""
        parent = self._parents.get(value)
        if isinstance(parent, ast.Attribute):
            if parent.attr in _FACTS:
                return True
            called = self._parents.get(parent)
            is_view = isinstance(called, ast.Call) and called.func is parent and parent.attr in _VIEWS
            return is_view and isinstance(called, ast.Call) and self._goes_into_the_loss(called)
        if isinstance(parent, ast.Subscript) and parent.value is value:
            return isinstance(parent.ctx, ast.Load) and self._goes_into_the_loss(parent)
        if isinstance(parent, ast.Call) and parent.args[:1] == [value]:
            return self._is_loss(parent.func)
        if isinstance(parent, ast.keyword) and parent.arg == "input":
            called = self._parents.get(parent)
            return isinstance(called, ast.Call) and self._is_loss(called.func)
        if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
            target = parent.targets[0]
            return isinstance(target, ast.Name) and self._all_uses_go_there(target.id)
        return False

    def _all_uses_go_there(self, name: str) -> bool:
        if name in self._names:
            return True
        self._names.add(name)
        return all(self._goes_into_the_loss(use) for use in self._uses(name))

    def _uses(self, name: str) -> Iterator[ast.Name]:
        for node in ast.walk(self._scope):
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
                yield node

    def _is_loss(self, called: ast.expr) -> bool:
        """Cross entropy, as a function of torch's module or as an object of the script's."""
        nn = self._torch.nn
        if isinstance(called, ast.Attribute) and called.attr == "cross_entropy":
            return resolved(called.value, self._frame) is nn.functional
        value = resolved(called, self._frame)
        if type(value) is not nn.CrossEntropyLoss:
            return False
        self._checks.append((called, value))
        return True


def _scope(tree: ast.Module, code: types.CodeType, line: int) -> ast.AST:
    """The function that runs, or the whole file for code outside of any."""
    functions = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name == code.co_name
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    if functions:
        return functions[-1]
    if code.co_name != "<module>":
        raise ValueError("a lambda, or source that does not match")
    return tree
