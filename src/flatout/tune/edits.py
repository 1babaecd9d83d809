"""One change of a source each: the changed text, or None where its place is not certain (libcst)."""

import io
import re
from typing import Any, ClassVar

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")


def lines_of(source: str) -> list[str]:
    """Lines with their ends, as Python counts them: other characters that end lines for `str` do not."""
    return io.StringIO(source).readlines()


def at_the_top(source: str, statement: str) -> str | None:
    """After the last import of the module's head."""
    tree = cst.parse_module(source)
    last = -1
    for number, node in enumerate(tree.body):
        if isinstance(node, cst.SimpleStatementLine) and any(
            isinstance(small, cst.Import | cst.ImportFrom) for small in node.body
        ):
            last = number
    if last < 0:
        return None
    line = cst.parse_statement(statement + "\n")
    if last + 1 < len(tree.body) and last >= 0:
        line = line.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
    return tree.with_changes(body=[*tree.body[: last + 1], line, *tree.body[last + 1 :]]).code


def with_fused(source: str, line: int | None) -> str | None:
    """The optimizer that is made at a line, fused."""

    def change(call: cst.Call) -> cst.Call | None:
        names = {argument.keyword.value for argument in call.args if argument.keyword is not None}
        unpacks = any(argument.star for argument in call.args)
        if _last_name(call.func) not in _FUSED or unpacks or names & {"fused", "foreach"}:
            return None
        return _with_keywords(call, {"fused": "True"})

    return _change_one_call(source, line, change)


def without_debug_modes(source: str) -> str | None:
    """Modes that are turned on by a plain constant, turned off; None where none is."""
    found = _DebugModes()
    tree = cst.parse_module(source).visit(found)
    return tree.code if found.count else None


def with_loader_settings(source: str, settings: dict[str, Any]) -> str | None:
    """The one DataLoader of the script, or the one that shuffles."""
    wrapper = MetadataWrapper(cst.parse_module(source))
    found = _Calls("DataLoader")
    wrapper.visit(found)
    shuffling = [call for call in found.calls if _keyword(call, "shuffle") == "True"]
    certain = found.calls if len(found.calls) == 1 else shuffling
    if len(certain) != 1 or any(argument.star for argument in certain[0].args):
        return None
    changed = _with_keywords(certain[0], {name: repr(value) for name, value in settings.items()})
    return _replaced(wrapper.module, certain[0], changed)


def with_autocast(source: str, line: int | None, device: str) -> str | None:
    """From the statement that calls the model to the one before `backward()`, in the same block."""
    lines = lines_of(source)
    block = _block_around(source, line)
    if block is None or line is None:
        return None
    spans, texts = block
    first = next((n for n, (start, end) in enumerate(spans) if start <= line <= end), None)
    last = next((n for n, text in enumerate(texts) if ".backward(" in text), None)
    if first is None or last is None or last <= first:
        return None
    inside = [n for n in range(first, last) if "zero_grad(" not in texts[n]]
    if inside != list(range(first, first + len(inside))):
        return None
    start, end = spans[first][0] - 1, spans[inside[-1]][1]
    body = lines[start:end]
    if any(quotes in line for line in body for quotes in ('"""', "'''")):
        return None  # what is in a long string must not be indented
    indent = lines[start][: len(lines[start]) - len(lines[start].lstrip())]
    kind = "cuda" if device.startswith("cuda") else "cpu"
    head = f'{indent}with torch.autocast("{kind}", dtype=torch.bfloat16):\n'
    inner = [f"    {line}" if line.strip() else line for line in body]
    return "".join([*lines[:start], head, *inner, *lines[end:]])


def with_compile(source: str, line: int | None, mode: str) -> str | None:
    """After the last assignment of the name that is called, before the call, in the same function."""
    if line is None:
        return None
    wrapper = MetadataWrapper(cst.parse_module(source))
    finder = _NamesCalled(line)
    wrapper.visit(finder)
    # `criterion(model(x), y)` calls two: the model is the one whose parameters are asked for.
    models = finder.names & set(re.findall(r"(\w+)\.parameters\(", source))
    if len(models) != 1:
        return None
    [name] = models
    places = _Assignments(name, line, finder.function)
    wrapper.visit(places)
    if places.after is None:
        return None
    lines = lines_of(source)
    statement = lines[places.start - 1]
    indent = statement[: len(statement) - len(statement.lstrip())]
    how = "" if mode == "default" else f', mode="{mode}"'
    new = f"{indent}{name}.forward = torch.compile({name}.forward{how})\n"
    return "".join([*lines[: places.after], new, *lines[places.after :]])


# Helpers


def _change_one_call(source: str, line: int | None, change: Any) -> str | None:
    if line is None:
        return None
    wrapper = MetadataWrapper(cst.parse_module(source))
    positions = wrapper.resolve(PositionProvider)
    covering = [
        node
        for node, where in positions.items()
        if isinstance(node, cst.Call) and where.start.line <= line <= where.end.line
    ]
    changed = [(node, new) for node in covering if (new := change(node)) is not None]
    if len(changed) != 1:
        return None
    return _replaced(wrapper.module, *changed[0])


def _replaced(tree: cst.Module, old: cst.CSTNode, new: cst.CSTNode) -> str:
    changed: Any = tree.deep_replace(old, new)
    return str(changed.code)


def _with_keywords(call: cst.Call, keywords: dict[str, str]) -> cst.Call:
    """The call with these keyword arguments, in the style of those that it has."""
    arguments = [
        argument.with_changes(value=cst.parse_expression(keywords[argument.keyword.value]))
        if argument.keyword is not None and argument.keyword.value in keywords
        else argument
        for argument in call.args
    ]
    known = {argument.keyword.value for argument in call.args if argument.keyword is not None}
    tight = cst.AssignEqual(
        whitespace_before=cst.SimpleWhitespace(""), whitespace_after=cst.SimpleWhitespace("")
    )
    new = [
        cst.Arg(keyword=cst.Name(name), value=cst.parse_expression(value), equal=tight)
        for name, value in keywords.items()
        if name not in known
    ]
    if new and arguments:
        last = arguments[-1]
        trailing = last.comma
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        if len(arguments) > 1 and isinstance(arguments[-2].comma, cst.Comma):
            comma = arguments[-2].comma
        arguments[-1] = last.with_changes(comma=comma)
        new = [one.with_changes(comma=comma) for one in new[:-1]] + [new[-1].with_changes(comma=trailing)]
    return call.with_changes(args=[*arguments, *new])


def _block_around(source: str, line: int | None) -> tuple[list[tuple[int, int]], list[str]] | None:
    """Spans and texts of the statements of the innermost block in which `line` is a statement of its own."""
    if line is None:
        return None
    wrapper = MetadataWrapper(cst.parse_module(source))
    positions = wrapper.resolve(PositionProvider)
    best: tuple[int, list[tuple[int, int]], list[str]] | None = None
    for node in positions:
        if not isinstance(node, cst.IndentedBlock | cst.Module):
            continue
        spans = [(positions[one].start.line, positions[one].end.line) for one in node.body]
        if not any(start <= line <= end for start, end in spans):
            continue
        size = spans[-1][1] - spans[0][0]
        if best is None or size < best[0]:
            module = wrapper.module
            best = (size, spans, [module.code_for_node(one) for one in node.body])
    return (best[1], best[2]) if best is not None else None


def _last_name(node: cst.BaseExpression) -> str:
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def _keyword(call: cst.Call, name: str) -> str | None:
    for argument in call.args:
        if argument.keyword is not None and argument.keyword.value == name:
            return cst.Module([]).code_for_node(argument.value)
    return None


class _DebugModes(cst.CSTTransformer):
    """`set_detect_anomaly(True)` and `set_sync_debug_mode("warn")`, off."""

    _OFF: ClassVar = {"set_detect_anomaly": "False", "set_sync_debug_mode": "0"}

    def __init__(self) -> None:
        self.count = 0

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:  # noqa: N802, ARG002
        off = self._OFF.get(_last_name(updated_node.func))
        if off is None or not updated_node.args:
            return updated_node
        first = updated_node.args[0]
        is_constant = isinstance(first.value, cst.SimpleString | cst.Integer) or (
            isinstance(first.value, cst.Name) and first.value.value == "True"
        )
        if not is_constant:
            return updated_node
        self.count += 1
        changed = first.with_changes(value=cst.parse_expression(off))
        return updated_node.with_changes(args=[changed, *updated_node.args[1:]])


class _Calls(cst.CSTVisitor):
    def __init__(self, name: str) -> None:
        self._name = name
        self.calls: list[cst.Call] = []

    def visit_Call(self, node: cst.Call) -> None:  # noqa: N802
        if _last_name(node.func) == self._name:
            self.calls.append(node)


class _NamesCalled(cst.CSTVisitor):
    """The plain names that are called at a line, and the function in which that is."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, line: int) -> None:
        self._line = line
        self._functions: list[cst.FunctionDef] = []
        self.names: set[str] = set()
        self.function: cst.FunctionDef | None = None

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:  # noqa: N802
        self._functions.append(node)

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:  # noqa: N802, ARG002
        self._functions.pop()

    def visit_Call(self, node: cst.Call) -> None:  # noqa: N802
        where = self.get_metadata(PositionProvider, node)
        if where.start.line <= self._line <= where.end.line and isinstance(node.func, cst.Name):
            self.names.add(node.func.value)
            self.function = self._functions[-1] if self._functions else None


class _Assignments(cst.CSTVisitor):
    """The last assignment to a name before a line, in one function's own body.

    One within an `if` or a loop that ends before the line may not have run: what follows that counts.
    """

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, name: str, line: int, function: cst.FunctionDef | None) -> None:
        self._name = name
        self._line = line
        self._function = function
        self._functions: list[cst.FunctionDef] = []
        self._blocks: list[cst.CSTNode] = []
        self.start = 0
        self.after: int | None = None

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.FunctionDef):
            self._functions.append(node)
        elif isinstance(node, cst.BaseCompoundStatement):
            self._blocks.append(node)
        return super().on_visit(node)

    def on_leave(self, original_node: cst.CSTNode) -> None:
        super().on_leave(original_node)
        if isinstance(original_node, cst.FunctionDef):
            self._functions.pop()
        elif isinstance(original_node, cst.BaseCompoundStatement):
            self._blocks.pop()

    def _whole(self, node: cst.CSTNode) -> Any:
        """Where it is, or the outermost block around it that is over before the line."""
        places = [self.get_metadata(PositionProvider, block) for block in (*self._blocks, node)]
        return next((place for place in places if place.end.line < self._line), None)

    def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> None:  # noqa: N802
        here = self._functions[-1] if self._functions else None
        if here is not self._function:
            return
        for small in node.body:
            if isinstance(small, cst.Assign) and any(
                isinstance(target.target, cst.Name) and target.target.value == self._name
                for target in small.targets
            ):
                where = self._whole(node)
                if where is not None:
                    self.start, self.after = where.start.line, where.end.line
