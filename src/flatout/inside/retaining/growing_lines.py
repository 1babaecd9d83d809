"""The line of a source that adds to something: `NAME.append(...)`, `NAME[...] = ...`, `NAME += ...`.

Found by reading, without running anything. A variable that is handed to a function of the same file is
followed there. Where nothing adds to it by that name, the line that makes it.
"""

import ast
import dataclasses
import linecache
from collections.abc import Iterator

# Methods by which containers grow.
_ADDING = frozenset(
    {"add", "append", "appendleft", "extend", "extendleft", "insert", "put", "setdefault", "update"}
)
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_SELVES = ("self", "cls")


@dataclasses.dataclass(frozen=True)
class Line:
    """A line, the function that it is in, and whether it adds or makes."""

    number: int
    function: str
    adds: bool


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A variable, or an attribute; one that is known in some lines of its file alone has a scope."""

    name: str
    attribute: bool = False
    scope: tuple[int, int] | None = None

    def is_in(self, node: ast.AST) -> bool:
        """Whether a line is where the name may mean this."""
        first, last = self.scope or (0, 1 << 31)
        return first <= getattr(node, "lineno", 0) <= last

    def is_named(self, node: ast.AST) -> bool:
        """The name itself."""
        if self.attribute:
            return isinstance(node, ast.Attribute) and node.attr == self.name
        return isinstance(node, ast.Name) and node.id == self.name

    def is_meant(self, node: ast.expr) -> bool:
        """The name, or something inside: `name[...]`."""
        while isinstance(node, ast.Subscript | ast.Starred):
            node = node.value
        return self.is_named(node)


def line_that_grows(file: str, wanted: Wanted) -> Line | None:
    """The first line that adds to it, else the first that makes it; None where there is no such line."""
    source = "".join(linecache.getlines(file))
    if wanted.name not in source:
        return None
    try:
        tree = ast.parse(source)
        here = list(_lines(tree, wanted, ""))
        if not any(line.adds for line in here) and not wanted.attribute:
            here += [line for line in _in_callees(tree, wanted) if line.adds]
    except (SyntaxError, ValueError, RecursionError):
        return None
    return min(here, key=lambda line: not line.adds, default=None)


def _lines(node: ast.AST, wanted: Wanted, function: str) -> Iterator[Line]:
    """In the order of the source."""
    if isinstance(node, _Function):
        function = node.name
    adds = _adds(node, wanted) if wanted.is_in(node) else None
    if adds is not None:
        yield Line(number=getattr(node, "lineno", 0), function=function, adds=adds)
    for child in ast.iter_child_nodes(node):
        yield from _lines(child, wanted, function)


def _adds(node: ast.AST, wanted: Wanted) -> bool | None:
    """True where it adds, False where it makes, None where it does neither."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return True if node.func.attr in _ADDING and wanted.is_meant(node.func.value) else None
    if isinstance(node, ast.AugAssign):
        return True if wanted.is_meant(node.target) else None
    if isinstance(node, ast.AnnAssign):
        return False if wanted.is_meant(node.target) else None
    if isinstance(node, ast.Assign):
        targets = [part for target in node.targets for part in _parts(target) if wanted.is_meant(part)]
        if targets:
            inside = any(isinstance(target, ast.Subscript) for target in targets)
            return inside or any(wanted.is_named(part) for part in ast.walk(node.value))
    return None


def _parts(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for part in target.elts:
            yield from _parts(part)
    else:
        yield target


def _in_callees(tree: ast.Module, wanted: Wanted) -> Iterator[Line]:
    """Lines of functions that it is handed to, under whatever name they know it by."""
    functions = [node for node in ast.walk(tree) if isinstance(node, _Function)]
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not wanted.is_in(call):
            continue
        callee = getattr(call.func, "attr", getattr(call.func, "id", ""))
        for function in functions:
            known_as = _parameter(call, function, wanted) if function.name == callee else ""
            if known_as:
                scope = (function.lineno, function.end_lineno or function.lineno)
                yield from _lines(function, Wanted(known_as, scope=scope), function.name)


def _parameter(call: ast.Call, function: _Function, wanted: Wanted) -> str:
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    if names and names[0] in _SELVES:
        names = names[1:]
    for value, name in zip(call.args, names, strict=False):
        if wanted.is_named(value):
            return name
    return next((given.arg for given in call.keywords if given.arg and wanted.is_named(given.value)), "")
