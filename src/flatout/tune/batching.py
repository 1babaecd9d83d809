"""Where a script takes its batch size from, how to give it another, and what that means for training."""

import ast
import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from flatout.records.plan import Choice
from flatout.runtime.command import JobCommand
from flatout.tune.fingerprints import script_of

BATCH_SIZE = "batch-size"
_OPTION = re.compile(
    r"^(?P<name>-{0,2}[\w.-]*(?:batch[_-]?size|bs|batch)[\w.-]*|-b)(?:=(?P<value>\d+))?$", re.IGNORECASE
)


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a script takes its batch size from: an option of its own, or its DataLoader (no option)."""

    option: str = ""
    joined: bool = False

    def choice(self, size: int, was: int) -> Choice:
        """A plan's lever with this size."""
        if not self.option:
            return Choice(id=BATCH_SIZE, settings={"loader": size, "_was": was})
        return Choice(id=BATCH_SIZE, settings={self.option: size, "_joined": self.joined, "_was": was})


def with_batch_size(command: JobCommand, choice: Choice) -> JobCommand:
    """The job's command line with the option of this choice set."""
    for name, value in choice.settings.items():
        if name in ("loader", "_joined", "_was"):
            continue
        given = command.given or command.words
        changed = _set(given, name, str(value), joined=bool(choice.settings.get("_joined")))
        extra = len(command.words) - len(given)
        command = dataclasses.replace(command, words=(*command.words[:extra], *changed), given=changed)
    return command


def loader_settings_of(choice: Choice) -> dict[str, int]:
    """What a session is to tell the DataLoader, where the script has no option."""
    if "loader" not in choice.settings:
        return {}
    return {"batch_size": choice.settings["loader"], "batch_size_was": choice.settings["_was"]}


def sources(command: JobCommand, size: int) -> Iterator[Source]:
    """Where the size may come from, the likeliest first; only a run can tell."""
    given = command.given or command.words
    for place, word in enumerate(given):
        found = _OPTION.match(word)
        if found is None:
            continue
        if found["value"] == str(size):
            yield Source(found["name"], joined=True)
        elif found["value"] is None and given[place + 1 : place + 2] == (str(size),):
            yield Source(found["name"])
    script, _ = script_of(given)
    if script is not None and script.suffix == ".py":
        yield from (source for source in _declared(script, size) if not _is_given(given, source.option))
    yield Source()


def options(command: JobCommand) -> Iterator[Source]:
    """Options of the script's own by which a batch size could be given, whatever it is now."""
    given = command.given or command.words
    for place, word in enumerate(given):
        found = _OPTION.match(word)
        if found is not None and found["value"] is not None:
            yield Source(found["name"], joined=True)
        elif found is not None and given[place + 1 : place + 2] and given[place + 1].isdigit():
            yield Source(found["name"])
    script, _ = script_of(given)
    if script is not None and script.suffix == ".py":
        yield from _declared(script, None)


def _declared(script: Path, size: int | None) -> Iterator[Source]:
    """Options that the script's own source declares, with this size as their default."""
    try:
        tree = ast.parse(script.read_text())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute | ast.Name):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        if called not in ("add_argument", "option"):
            continue
        names = [
            arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
        ]
        default = next((k.value for k in node.keywords if k.arg == "default"), None)
        is_this_size = isinstance(default, ast.Constant) and (
            default.value == size if size is not None else isinstance(default.value, int)
        )
        options = [name for name in names if name.startswith("-") and _OPTION.match(name)]
        if options and is_this_size:
            yield Source(max(options, key=len))


def _is_given(words: Sequence[str], option: str) -> bool:
    return any(word == option or word.startswith(f"{option}=") for word in words)


def _set(words: Sequence[str], option: str, value: str, *, joined: bool) -> tuple[str, ...]:
    changed = list(words)
    for place, word in enumerate(words):
        if word.startswith(f"{option}="):
            changed[place] = f"{option}={value}"
            return tuple(changed)
        if word == option and place + 1 < len(words):
            changed[place + 1] = value
            return tuple(changed)
    return (*words, f"{option}={value}") if joined else (*words, option, value)


def consequence(choice: Choice, times: float) -> str:
    """What it means for the training, in a sentence; `times` as many samples reach the model in an update."""
    was = choice.settings["_was"]
    size = next(value for name, value in choice.settings.items() if not name.startswith("_"))
    if abs(times - 1) < 0.01:  # the script accumulates less where a batch is larger
        return f"batch {was} -> {size}: an update still sees as many samples as before, in fewer passes"
    return (
        f"batch {was} -> {size}: each step sees {times:.3g}x the samples, an epoch has {times:.3g}x fewer "
        f"steps; the learning rate is still the script's (the usual rules would multiply it by "
        f"{times**0.5:.1f} for Adam, by {times:.3g} for SGD)"
    )
