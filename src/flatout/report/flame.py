"""Who holds memory as a picture of calls: the outermost on top, what it calls below, as wide as it holds."""

import dataclasses
from collections.abc import Sequence

from flatout.records.fit import MemoryStack
from flatout.records.words import memory_size, percent
from flatout.report.page import cut

# Narrower ones, in percent, are no more than a line; and where no word fits.
_NARROWEST, _ROOM_FOR_WORDS = 0.1, 3.0
# Of a call, what one category must hold to give it its colour.
_NEARLY_ALL = 0.95
# Deeper calls are left out in the middle.
_DEEPEST = 24
_LONGEST_NAME = 200
_NO_LINE = "no line of the script"
# Of ours; a name from outside must not become a class of the page.
_CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "workspace")


@dataclasses.dataclass(frozen=True)
class Box:
    """One call, or what ran in the innermost; its place in percent of the whole."""

    kind: str
    row: int
    start: float
    width: float
    label: str
    title: str


@dataclasses.dataclass(frozen=True)
class Flame:
    """All boxes, and how many rows they take."""

    boxes: list[Box]
    rows: int


@dataclasses.dataclass
class _Node:
    """A call as the tree has it."""

    name: str
    label: str
    size: int = 0
    count: int = 0
    categories: dict[str, int] = dataclasses.field(default_factory=dict)
    below: dict[str, "_Node"] = dataclasses.field(default_factory=dict)

    def add(self, stack: MemoryStack) -> None:
        self.size += stack.size_bytes
        self.count += stack.count
        self.categories[stack.category] = self.categories.get(stack.category, 0) + stack.size_bytes

    @property
    def kind(self) -> str:
        """The category that holds nearly all of it."""
        most, size = max(self.categories.items(), key=lambda item: item[1])
        return most if most in _CATEGORIES and size >= _NEARLY_ALL * self.size else "mixed"


def flame(stacks: Sequence[MemoryStack], whole_bytes: int, title: str) -> Flame | None:
    """The picture; None where nothing is held. What is in no stack stays blank at the right."""
    known = [stack for stack in stacks if stack.size_bytes > 0]
    if not known:
        return None
    root = _Node(title, title)
    for stack in known:
        root.add(stack)
        node = root
        for name, label in _way(stack):
            node = node.below.setdefault(name, _Node(name, label))
            node.add(stack)
    root.size = max(root.size, whole_bytes)
    boxes: list[Box] = []
    _place(root, root.size, 0, 0.0, boxes)
    return Flame(boxes, 1 + max(box.row for box in boxes))


def short_call(frame: str) -> str:
    """`src/model.py:66 in Block.forward` as `Block.forward:66`; a module's own lines by its file."""
    place, known, function = frame.rpartition(" in ")
    file, has_line, line = place.rpartition(":")
    if not known or not has_line:
        return frame
    name = file.rpartition("/")[2] if function == "<module>" else function
    return f"{name}:{line}"


def _way(stack: MemoryStack) -> list[tuple[str, str]]:
    """Name and label of each call, and of what ran in the innermost."""
    frames = list(stack.frames) or [_NO_LINE]
    if len(frames) > _DEEPEST:
        half = _DEEPEST // 2
        between = f"{len(frames) - 2 * half} calls between"
        frames = [*frames[:half], between, *frames[-half:]]
    calls = [(cut(frame, _LONGEST_NAME), cut(short_call(frame), _LONGEST_NAME)) for frame in frames]
    last = f"{stack.operator} ({stack.category})" if stack.operator else stack.category
    return [*calls, (cut(last, _LONGEST_NAME), cut(stack.operator or stack.category, _LONGEST_NAME))]


def _place(node: _Node, whole: int, row: int, start: float, boxes: list[Box]) -> None:
    width = 100 * node.size / whole
    if width < _NARROWEST:
        return
    size = memory_size(node.size)
    times = f", {node.count} x" if node.count > 1 else ""
    boxes.append(
        Box(
            kind=node.kind,
            row=row,
            start=round(start, 3),
            width=round(min(width, 100 - start), 3),
            label=f"{node.label} {size}" if width >= _ROOM_FOR_WORDS else "",
            title=f"{node.name}: {size}, {percent(node.size / whole)}{times}",
        )
    )
    for child in sorted(node.below.values(), key=lambda one: -one.size):
        _place(child, whole, row + 1, start, boxes)
        start += 100 * child.size / whole
