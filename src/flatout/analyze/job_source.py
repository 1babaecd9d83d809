"""Reads a Python file as text: does it look like a training, or like an inference, that one can start?

Only the source is read, nothing is imported or run. So it can be wrong in both directions: a training may
hide behind a function of another file, and a backward pass may never be reached. It says what it saw, where.
"""

import ast
import dataclasses
from collections.abc import Iterator

_LIBRARIES = ("torch", "lightning", "pytorch_lightning", "transformers", "accelerate")
# Classes with a loop of their own are called so, in libraries and in projects; and what starts that loop.
_TRAINER = "Trainer"
_STARTS_OF_TRAINERS = ("fit", "train", "run")
_OF_INFERENCE = ("no_grad", "inference_mode")
_NAMES_OF_STARTS = ("train", "fit", "main", "run")


@dataclasses.dataclass(frozen=True)
class JobSource:
    """What a file shows, each with its line where it has one."""

    libraries: tuple[str, ...]
    # `backward` in a loop, or a trainer's own loop: what trains here, in words.
    trains: str = ""
    infers: str = ""
    # What starts it when the file is run; empty for a file that only defines things.
    starts: str = ""
    # A function of some other file that is called `train` or `fit`.
    trains_elsewhere: str = ""


def read_job_source(text: str) -> JobSource | None:
    """What the source shows; None where it uses none of the libraries. Raises SyntaxError."""
    tree = ast.parse(text)
    libraries = tuple(dict.fromkeys(name for name in _imported(tree) if name in _LIBRARIES))
    if not libraries:
        return None
    return JobSource(
        libraries=libraries,
        trains=_training(tree),
        infers=_inference(tree),
        starts=_start(tree),
        trains_elsewhere=_training_elsewhere(tree),
    )


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _training(tree: ast.Module) -> str:
    in_loops = [
        node
        for loop in ast.walk(tree)
        if isinstance(loop, ast.For | ast.While | ast.AsyncFor)
        for node in ast.walk(loop)
    ]
    looped = _first_call(in_loops, "backward")
    if looped is not None:
        return f"a loop with backward (line {looped.lineno})"
    trainer = _first_use_of_a_trainer(tree)
    if trainer:
        return trainer
    plain = _first_call(list(ast.walk(tree)), "backward")
    return f"a backward pass (line {plain.lineno})" if plain is not None else ""


def _first_use_of_a_trainer(tree: ast.Module) -> str:
    """`Trainer(...)` of some library or of this file, together with the call that starts it."""
    derived = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any(_name(base).endswith(_TRAINER) for base in node.bases)
    }
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    made = next(
        (_name(call) for call in calls if _name(call).endswith(_TRAINER) or _name(call) in derived), ""
    )
    for call in calls if made else ():
        start = _attribute(call.func)
        if start in _STARTS_OF_TRAINERS and not _is_mode(call):
            return f"{made}.{start} (line {call.lineno})"
    return ""


def _is_mode(call: ast.Call) -> bool:
    """`model.train(True)` sets a mode; so does a bare `model.train()`, but on another object."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    named = _name(owner) if owner is not None else ""
    return _attribute(call.func) == "train" and "train" not in named.lower()


def _inference(tree: ast.Module) -> str:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _attribute(node.func) == "generate":
            return f"generate (line {node.lineno})"
        if isinstance(node, ast.Attribute | ast.Name) and _name(node) in _OF_INFERENCE:
            return f"{_name(node)} (line {node.lineno})"
    return ""


def _start(tree: ast.Module) -> str:
    for node in tree.body:
        if isinstance(node, ast.If) and _is_main_guard(node.test):
            return f'if __name__ == "__main__" (line {node.lineno})'
    for node in tree.body:
        if isinstance(node, ast.For | ast.While | ast.With | ast.Try):
            return f"it works at its top level (line {node.lineno})"
        if isinstance(node, ast.Expr | ast.Assign) and isinstance(node.value, ast.Call):
            called = _name(node.value)
            if any(word in called.lower() for word in _NAMES_OF_STARTS):
                return f"it calls {called} at its top level (line {node.lineno})"
    return ""


def _is_main_guard(test: ast.expr) -> bool:
    if not isinstance(test, ast.Compare):
        return False
    sides = [test.left, *test.comparators]
    named = any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides)
    return named and any(isinstance(side, ast.Constant) and side.value == "__main__" for side in sides)


def _training_elsewhere(tree: ast.Module) -> str:
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = _name(node.func)
            taken = name not in own and not _is_mode(node)
            if taken and (name in ("train", "fit") or name.startswith(("train_", "fit_"))):
                return f"it calls {name} (line {node.lineno})"
    return ""


def _first_call(nodes: list[ast.AST], attribute: str) -> ast.Call | None:
    calls = [node for node in nodes if isinstance(node, ast.Call) and _attribute(node.func) == attribute]
    return min(calls, key=lambda call: call.lineno, default=None)


def _attribute(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else ""


def _name(node: ast.expr) -> str:
    """The last part of a dotted name."""
    if isinstance(node, ast.Call):
        return _name(node.func)
    return node.id if isinstance(node, ast.Name) else _attribute(node)
