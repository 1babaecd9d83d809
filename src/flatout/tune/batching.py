"""A larger batch, where the user allows it: where its size comes from, and at which size it pays."""

import ast
import dataclasses
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from flatout.records.plan import Choice
from flatout.records.tuning import LeverTrial, Pace
from flatout.runtime.command import JobCommand
from flatout.tune.fingerprints import script_of

BATCH_SIZE = "batch-size"
# Throughput that grows by less than this with twice the batch has reached its knee.
_KNEE = 0.03
# Per doubling.
_HARDLY_LONGER = 1.6
_LARGEST_FACTOR = 256
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


# The sizes --------------------------------------------------------------------------------------------------

# Runs the job under some levers: how it went, or why not.
Measure = Callable[[Choice], tuple[Pace | None, float | None, str]]


@dataclasses.dataclass(frozen=True)
class Size:
    """One size that was tried."""

    choice: Choice
    size: int
    pace: Pace | None
    outcome: str


def climb(
    command: JobCommand,
    size: int,
    now: Pace,
    room_bytes: int | None,
    measure: Measure,
    deadline: float = math.inf,
) -> tuple[Choice | None, list[Size], str]:
    """Grow the batch until it no longer pays; the choice, what was tried, and why it ended."""
    tried: list[Size] = []
    for source in sources(command, size):
        first = _try(source, 2 * size, size, measure)
        tried.append(first)
        if first.pace is None or first.outcome:
            continue
        reason = _grow(source, size, first, now, room_bytes, measure, tried, deadline)
        good = [one for one in tried if one.pace is not None and not one.outcome]
        rates = {one.size: (one.pace.samples_per_s or 0.0) for one in good if one.pace is not None}
        best = max([now.samples_per_s or 0.0, *rates.values()])
        if best <= (now.samples_per_s or 0.0) * (1 + _KNEE):
            return None, tried, "throughput does not grow with the batch"
        knee = min(one for one, rate in rates.items() if rate >= best * (1 - _KNEE))
        return next(one.choice for one in good if one.size == knee), tried, reason
    ended = tried[-1].outcome if tried else ""
    return None, tried, ended or "no way was found to change the size that reaches the model"


def _try(source: Source, size: int, was: int, measure: Measure) -> Size:
    choice = source.choice(size, was)
    pace, samples, outcome = measure(choice)
    if pace is not None and (samples is None or abs(samples / size - 1) > 0.01):
        outcome = f"with {choice.words()} {samples:g} samples reach the model"
    return Size(choice, size, pace, outcome)


def _grow(
    source: Source,
    was: int,
    last: Size,
    now: Pace,
    room_bytes: int | None,
    measure: Measure,
    tried: list[Size],
    deadline: float,
) -> str:
    before, factor, fits = now.samples_per_s or 0.0, 2, math.inf
    while last.pace is not None and not last.outcome:
        rate, peak = last.pace.samples_per_s or 0.0, last.pace.peak_bytes
        if rate < before * (1 + _KNEE):
            return "throughput no longer grows"
        room = room_bytes / peak if room_bytes is not None and peak else math.inf
        if room < 1.8:
            return "twice as many samples would not fit"
        if last.size >= _LARGEST_FACTOR * was:
            return "larger was not tried"
        if 2 * last.size > fits:
            return next(one.outcome for one in tried if one.outcome or one.pace is None)
        if time.monotonic() > deadline:
            return "the time allowed was over"
        # Where twice the samples take hardly longer the knee is far away; every size costs a run.
        far = rate >= before * _HARDLY_LONGER ** math.log2(factor) and room >= 3.6
        far = far and 4 * last.size <= _LARGEST_FACTOR * was
        before, factor, smaller = rate, 4 if far else 2, last.size
        last = _try(source, factor * smaller, was, measure)
        tried.append(last)
        if far and (last.pace is None or last.outcome):
            factor, fits = 2, 3 * smaller  # four times as many do not
            last = _try(source, factor * smaller, was, measure)
            tried.append(last)
    return last.outcome


def consequence(choice: Choice, times: float) -> str:
    """What it means for the training, in a sentence; `times` as many samples reach the model in an update."""
    was = choice.settings["_was"]
    size = next(value for name, value in choice.settings.items() if not name.startswith("_"))
    if abs(times - 1) < 0.01:  # the script accumulates less where a batch is larger
        return f"batch {was} -> {size}: an update still sees as many samples as before, in fewer passes"
    return (
        f"batch {was} -> {size}: each step sees {times:g}x the samples, an epoch has {times:g}x fewer steps; "
        f"the learning rate is still the script's (the usual rules would multiply it by {times**0.5:.1f} for "
        f"Adam, by {times:g} for SGD)"
    )


def as_trials(tried: Sequence[Size], chosen: Choice | None, now: Pace, reason: str) -> list[LeverTrial]:
    """What became of each size."""
    trials = []
    for one in tried:
        measured = None
        if one.pace is not None and one.pace.samples_per_s and now.samples_per_s:
            measured = one.pace.samples_per_s / now.samples_per_s
        failed = one.pace is None or bool(one.outcome)
        kept = chosen is not None and one.choice.settings == chosen.settings
        why = one.outcome if failed else ("the knee of throughput" if kept else reason)
        trials.append(
            LeverTrial(
                lever=BATCH_SIZE,
                safety="recipe",
                verdict="failed" if failed else "kept" if kept else "rejected",
                reason=why,
                settings=one.choice.settings,
                measured_speedup=measured,
            )
        )
    return trials
