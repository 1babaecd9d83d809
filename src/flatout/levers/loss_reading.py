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

from flatout.levers.places import locals_of

FACTS = {"shape", "size", "dim", "ndim", "numel", "device", "requires_grad"}
_VIEWS = {"view", "reshape", "flatten", "transpose", "permute", "contiguous", "squeeze", "unsqueeze"}
_SEES_ALL_NAMES = {"locals", "vars", "globals", "eval", "exec"}
_OWN_SCOPE = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_MISSING = object()

# A loss that is an object of the script's: its name in the source, and which object it was.
Checks = list[tuple[ast.expr, Any]]


def goes_into_the_loss_alone(frame: FrameType, root: Any, torch: Any) -> Checks | None:
    """What must still hold whenever the frame comes here again; None where the output goes elsewhere."""
    try:
        return Reading(frame, root, torch).read()
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def still_holds(checks: Checks, frame: FrameType) -> bool:
    """Whether the names of losses still stand for the same objects."""
    return all(resolved(expression, frame) is expected for expression, expected in checks)


def resolved(expression: ast.expr, frame: FrameType) -> Any:
    """What a name or a dotted name stands for in a frame, found without running any of the script's code."""
    if isinstance(expression, ast.Name):
        # Where there is no frame, its names stand in for it.
        names = locals_of(frame) if isinstance(frame, FrameType) else frame.f_locals
        return names.get(expression.id, frame.f_globals.get(expression.id, _MISSING))
    if isinstance(expression, ast.Attribute):
        owner = resolved(expression.value, frame)
        if isinstance(owner, types.ModuleType):
            return vars(owner).get(expression.attr, _MISSING)
        own = getattr(owner, "__dict__", {})
        return own.get(expression.attr, own.get("_modules", {}).get(expression.attr, _MISSING))
    return _MISSING


class Reading:
    """One reading of the function that calls the model, at one line of it."""

    def __init__(self, frame: FrameType, root: Any, torch: Any) -> None:
        self._frame = frame
        self._root = root
        self._torch = torch
        code = frame.f_code
        tree = ast.parse("".join(linecache.getlines(code.co_filename, frame.f_globals)))
        self._scope = scope_of(tree, code, frame.f_lineno)
        self._parents = {
            child: parent for parent in ast.walk(self._scope) for child in ast.iter_child_nodes(parent)
        }
        self._names: set[str] = set()
        self._checks: Checks = []

    def read(self) -> Checks | None:
        """What must hold; None where the output goes elsewhere, or may."""
        call = self._root_call()
        return self._checks if call is not None and self._goes_into_the_loss(call) else None

    def _root_call(self) -> ast.Call | None:
        """The one call of the root at this line."""
        line = self._frame.f_lineno
        calls = [
            node
            for node in ast.walk(self._scope)
            if isinstance(node, ast.Call)
            and node.lineno <= line <= (node.end_lineno or node.lineno)
            and self._is_root(resolved(node.func, self._frame))
        ]
        return calls[0] if len(calls) == 1 and not self._names_are_seen_elsewhere(calls[0]) else None

    def _is_root(self, value: Any) -> bool:
        if value is self._root:
            return True
        wrapped = getattr(value, "__dict__", {}).get("_modules", {}).get("module")
        return wrapped is not None and wrapped is self._root

    def _names_are_seen_elsewhere(self, call: ast.Call) -> bool:
        return any(
            isinstance(node, ast.Global | ast.Nonlocal)
            or (isinstance(node, ast.Name) and node.id in _SEES_ALL_NAMES)
            for part in self._parts_from(call)
            for node in ast.walk(part)
        )

    def _parts_from(self, call: ast.Call) -> list[ast.AST]:
        """What may run once the call has: of a file all but the statements before, which run once."""
        if not isinstance(self._scope, ast.Module):
            return [self._scope]
        first = next(number for number, one in enumerate(self._scope.body) if call in ast.walk(one))
        return [
            one
            for number, one in enumerate(self._scope.body)
            if number >= first or isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        ]

    def _goes_into_the_loss(self, value: ast.expr) -> bool:
        """Whether this expression's value ends in a loss, whichever way it takes."""
        parent = self._parents.get(value)
        if isinstance(parent, ast.Attribute):
            if parent.attr in FACTS:
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
        return uses_of(name, self._scope, self._parents)

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


def uses_of(name: str, scope: ast.AST, parents: dict[ast.AST, ast.AST]) -> Iterator[ast.Name]:
    """Where a name is read; `x += 1` reads it too, though Python's grammar calls that a store.

    Functions inside that have a name of their own like it read that one.
    """
    for node in _outside_of_other_owners(name, scope):
        if isinstance(node, ast.Name) and node.id == name:
            is_augmented = isinstance(parents.get(node), ast.AugAssign) and not isinstance(node.ctx, ast.Del)
            if isinstance(node.ctx, ast.Load) or is_augmented:
                yield node


def _outside_of_other_owners(name: str, scope: ast.AST) -> Iterator[ast.AST]:
    todo: list[ast.AST] = [scope]
    while todo:
        node = todo.pop()
        yield node
        todo += [one for one in ast.iter_child_nodes(node) if not _has_its_own(name, one)]


def _has_its_own(name: str, node: ast.AST) -> bool:
    """Whether a function binds a name itself; by its source, without what functions inside of it bind."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    arguments = node.args
    named = [
        *arguments.posonlyargs,
        *arguments.args,
        *arguments.kwonlyargs,
        arguments.vararg,
        arguments.kwarg,
    ]
    if any(one is not None and one.arg == name for one in named):
        return True
    todo: list[ast.AST] = list(node.body)
    while todo:
        inner = todo.pop()
        if isinstance(inner, ast.Global | ast.Nonlocal) and name in inner.names:
            return False
        if isinstance(inner, ast.Name) and inner.id == name and isinstance(inner.ctx, ast.Store):
            return True
        if not isinstance(
            inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef | _OWN_SCOPE
        ):
            todo += ast.iter_child_nodes(inner)
    return False


def scope_of(tree: ast.Module, code: types.CodeType, line: int) -> ast.AST:
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
