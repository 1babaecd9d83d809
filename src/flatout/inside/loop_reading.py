"""Reads the loop that takes batches from a loader: what does its source do with them first?

Watching some batches shows what those steps did. A line that runs every hundredth step shows in the source.
"""

import ast
import linecache
from collections.abc import Iterator
from typing import Any

_COPIES = ("to", "cuda")


def copied_first(frame: Any) -> dict[str, bool] | None:
    """By path in the batch: whether the loop's first use of it is an unconditional copy that takes its name.

    None where the frame's source cannot be read, or holds no plain `for` over batches at its current line.
    """
    lines = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):
        return None
    loops = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.For) and node.lineno <= frame.f_lineno <= node.iter.end_lineno
    ]
    if len(loops) != 1:
        return None
    loop = loops[0]
    names = dict(_names(_batch_target(loop)))
    return {path: _is_copied_first(loop.body, name) for path, name in names.items()} or None


def _batch_target(loop: ast.For) -> ast.expr:
    """What a batch is unpacked into; `for i, batch in enumerate(loader)` counts beside it."""
    called = loop.iter.func if isinstance(loop.iter, ast.Call) else None
    counts = isinstance(called, ast.Name) and called.id == "enumerate"
    if counts and isinstance(loop.target, ast.Tuple) and len(loop.target.elts) == 2:
        return loop.target.elts[1]
    return loop.target


def _names(target: ast.expr) -> Iterator[tuple[str, str]]:
    """Names with the path of what they hold."""
    if isinstance(target, ast.Name):
        yield "", target.id
    elif isinstance(target, ast.Tuple | ast.List):
        for place, item in enumerate(target.elts):
            if isinstance(item, ast.Name):
                yield str(place), item.id


def _is_copied_first(body: list[ast.stmt], name: str) -> bool:
    for statement in body:
        uses = [node for node in ast.walk(statement) if isinstance(node, ast.Name) and node.id == name]
        if uses:
            return _copies(statement, name)
    return False


def _copies(statement: ast.stmt, name: str) -> bool:
    """`x = x.to(...)`, or the same in `x, y = x.to(...), y.cuda()`; and no other use of the name there."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    target, value = statement.targets[0], statement.value
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        pairs = list(zip(target.elts, value.elts, strict=True))
    elif isinstance(target, ast.Tuple):
        return False
    used = 0
    for one, made in pairs:
        mentions = sum(isinstance(node, ast.Name) and node.id == name for node in ast.walk(made))
        if not mentions:
            continue
        used += mentions
        is_copy = (
            isinstance(made, ast.Call)
            and isinstance(made.func, ast.Attribute)
            and made.func.attr in _COPIES
            and isinstance(made.func.value, ast.Name)
            and made.func.value.id == name
        )
        if not is_copy or not isinstance(one, ast.Name) or one.id != name:
            return False
    return used == 1
