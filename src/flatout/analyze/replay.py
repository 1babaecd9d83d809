"""From the events of a process to its steps: what nests in what, what was evaluation, what belongs where.

Events come in the order in which they ended. A span that lies inside another one is the other's own
business: each instant is given to the innermost. A stretch of evaluation begins with whatever came before its
first call (a batch, `eval()`) and lasts until training goes on; all of that time is evaluation's.
"""

import bisect
import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

from flatout.records.session import ON_ITS_WAY

Event = Sequence[Any]
Step = dict[str, Any]

_TIMED = {
    "loader": "loader_ns",
    "copy": "copy_ns",
    "forward": "forward_ns",
    "backward": "backward_ns",
    "clipping": "clipping_ns",
    "optimizer": "optimizer_ns",
}
_ZEROS = (
    "loader_ns",
    "loader_batches",
    "copy_ns",
    "copies",
    "copy_bytes",
    "forward_ns",
    "forwards",
    "backward_ns",
    "backwards",
    "clipping_ns",
    "optimizer_ns",
    "evaluation_ns",
    "evaluations",
    "collector_ns",
    "compile_ns",
    "compiles",
    "recompiles",
    "recordings",
    "recorded",
    "skipped_updates",
    "samples",
    "tokens",
)
# Loader events that bring no batch: an iterator starts, or comes to its end.
_START, _END = -1, -2
# Where events name their thread.
_WHOSE = {"loader": 4, "copy": 4, "forward": 8}


@dataclasses.dataclass
class Span:
    """One event with the time that is its own."""

    event: Event
    own_ns: int

    @property
    def kind(self) -> str:
        """What happened."""
        return str(self.event[0])


class Replay:
    """Takes in events, gives out steps; a step on a GPU is complete when its device times have come."""

    def __init__(self) -> None:
        # The last update that was made, whether or not its device times have come.
        self.updates = 0
        # Where levers take turns: the generation and number of the arm that is on, and levers that failed.
        self.arm: tuple[int, int] | None = None
        self._in_block = 0
        # By lever and settings (`records.session.lever_key`).
        self.dropped: dict[str, str] = {}
        self._lead_root: int | None = None
        self._thread: int | None = None
        self._started_ns: int | None = None
        self._open: list[Event] = []
        self._waiting: dict[int, Step] = {}
        # Steps that are complete, while an earlier one waits.
        self._complete: dict[int, Step] = {}
        self._on_device = False
        # Numbers that came with a step in which they have no place; see `_fill`.
        self._late: dict[str, list[Any]] = {"losses": [], "gradient_norms": []}

    def take(self, events: Iterable[Event]) -> list[Step]:
        """The steps that these events complete."""
        done: list[Step] = []
        for event in events:
            kind = event[0]
            if kind == "step":
                done += self._closed(event)
            elif kind == "device":
                done += self._timed(event)
            elif kind == "clock":
                self._on_device = bool(event[1])
                if not self._on_device:  # lost: what was waited for will never come
                    done += self.rest()
            elif kind == "arm":
                self.arm, self._in_block = (event[2], event[3]), 0
            elif kind == "dropped":
                self.dropped[event[1]] = event[2]
            elif kind == "start":
                self._started_ns = event[1]
            elif kind == "thread":
                self._thread = event[1]
            elif kind == "root":
                self._lead_root = event[1]
            else:
                self._open.append(event)
        return done

    def rest(self) -> list[Step]:
        """The steps whose device times never came, when there is nothing more to take."""
        for step in self._waiting.values():
            self._fill(step, (), ())
        left = self._waiting | self._complete
        self._waiting, self._complete = {}, {}
        return [left[update] for update in sorted(left)]

    def unfinished(self) -> tuple[int, int]:
        """Training calls of models, and evaluation calls, since the last update."""
        calls = [event for event in self._open if event[0] == "forward"]
        models = self._called_first()
        trained = sum(bool(event[4]) and event[3] in models for event in calls)
        return trained, sum(_calls(event) for event in calls if not event[4])

    def _called_first(self) -> set[int]:
        """What begins a pass is a model; a loss is a module too, but comes after one."""
        found: set[int] = set()
        begins = True
        for event in self._open:
            if event[0] == "backward":
                begins = True
            elif begins and event[0] == "forward" and event[4]:
                found.add(event[3])
                begins = False
        return found

    def is_evaluating(self) -> bool:
        """Whether the last call of a model kept no gradients, and no update has come since."""
        calls = (event for event in reversed(self._open) if event[0] == "forward")
        last = next(calls, None)
        return last is not None and not last[4]

    def thin_out(self, most: int) -> None:
        """Forget what lies in the middle of an evaluation that goes on and on: its time is still known."""
        if len(self._open) > most:
            half = most // 4
            self._open = [*self._open[:half], *self._open[-half:]]

    def _closed(self, event: Event) -> list[Step]:
        _, ended_ns, update, seen = event
        self.updates = update
        inside = [one for one in self._open if one[2] <= ended_ns and self._is_ours(one)]
        self._open = [one for one in self._open if one[2] > ended_ns]
        started_ns = self._started_ns if self._started_ns is not None else _first_start(inside, ended_ns)
        self._started_ns = ended_ns
        step = build_step(inside, started_ns, ended_ns, self._lead_root)
        # Of later steps only some are looked at; the others have their time and nothing else.
        step = {"update": update, "watched": seen is not False, **step, **(seen or {})}
        if self.arm is not None:
            self._in_block += 1
            step |= {"arm": self.arm, "in_block": self._in_block}
        if self._on_device and step["watched"]:
            self._waiting[update] = step
            return []
        self._fill(step, (), ())
        if not self._waiting:
            return [step]
        self._complete[update] = step
        return []

    def _is_ours(self, event: Event) -> bool:
        """Whether the thread that trains did this; what others do meanwhile is not its time."""
        place = _WHOSE.get(event[0])
        return place is None or self._thread is None or event[place] == self._thread

    def _timed(self, event: Event) -> list[Step]:
        _, update, took_ms, parts, losses, norms, reason = event
        step = self._waiting.pop(update, None)
        if step is None:
            return []
        self._fill(step, losses, norms)
        if took_ms is not None:
            step["device_ms"] = took_ms
        if parts:
            step["device_parts_ms"] = parts
        if reason:
            step["device_reason"] = reason
        # Steps that nobody looked at have no device times to wait for; they still come in their order.
        due = [number for number in self._complete if number < min(self._waiting, default=math.inf)]
        return [step, *(self._complete.pop(number) for number in due)]

    def _fill(self, step: Step, losses: Sequence[Any], norms: Sequence[Any]) -> None:
        """Put numbers that a device delivered in the places that were left open for them, in order.

        Where a boundary was known late, the numbers of the step after it have come along: they are kept.
        """
        for name, values in (("losses", losses), ("gradient_norms", norms)):
            late = [*self._late[name], *values]
            places = sum(value == ON_ITS_WAY for value in step[name])
            due, self._late[name] = iter(late[:places]), late[places:]
            step[name] = [next(due, None) if value == ON_ITS_WAY else value for value in step[name]]


def build_step(events: Sequence[Event], started_ns: int, ended_ns: int, lead_root: int | None) -> Step:
    """One step from the events that ended in it."""
    step: Step = {"started_ns": started_ns, "ended_ns": ended_ns, **dict.fromkeys(_ZEROS, 0)}
    step |= {"losses": [], "gradient_norms": [], "loaders": {}}
    spans = own_times(events)
    calls = _Calls(spans)
    stretches = evaluations(spans)
    step["evaluation_ns"] = sum(end - start for start, end in stretches)
    samples: dict[int, int] = {}
    tokens: dict[int, int] = {}
    for span in spans:
        event, kind = span.event, span.kind
        if kind == "forward" and not calls.trains(event):
            step["evaluations"] += _calls(event)
            if event[4]:  # kept gradients, so no stretch covers it
                step["evaluation_ns"] += span.own_ns
            continue
        if any(start <= event[1] and event[2] <= end for start, end in stretches):
            continue
        if kind in _TIMED:
            step[_TIMED[kind]] += span.own_ns
        _count(step, event, samples, tokens)
    root = lead_root if lead_root in samples or not samples else max(samples, key=samples.__getitem__)
    step["samples"], step["tokens"] = samples.get(root, 0), tokens.get(root, 0)  # type: ignore[arg-type]
    return step


def _calls(event: Event) -> int:
    """How many calls an event stands for: where they are many, those without gradients come as sums."""
    return int(event[9]) if len(event) > 9 else 1


def _count(step: Step, event: Event, samples: dict[int, int], tokens: dict[int, int]) -> None:
    kind = event[0]
    if kind == "loader":
        if event[3] not in (_START, _END):
            step["loader_batches"] += 1
        batches, wait_ns = step["loaders"].get(event[3], (0, 0))
        step["loaders"][event[3]] = (batches + 1, wait_ns + event[2] - event[1])
    elif kind == "copy":
        step["copies"] += 1
        step["copy_bytes"] += event[3]
    elif kind == "forward":
        step["forwards"] += 1
        _, _, _, root, _, _, shape, is_float, _ = event
        if shape:
            samples[root] = samples.get(root, 0) + shape[0]
            if not is_float:
                count = 1
                for size in shape:
                    count *= size
                tokens[root] = tokens.get(root, 0) + count
    elif kind == "backward":
        step["backwards"] += 1
        step["losses"].append(event[3])
    elif kind == "clipping":
        step["gradient_norms"].append(event[3])
    elif kind == "collector":
        step["collector_ns"] += event[2] - event[1]
    elif kind == "compile":
        step["compiles"] += 1
        step["recompiles"] += bool(event[3])
        step["compile_ns"] += event[2] - event[1]
    elif kind == "recorded":
        step["recorded"] += 1
    elif kind == "recording":
        step["recordings"] += 1
    elif kind == "skip":
        step["skipped_updates"] += 1


def own_times(events: Sequence[Event]) -> list[Span]:
    """Every span with its own time; collector and compiler lie across the others and take nothing away."""
    spans: list[Span] = []
    open_top: list[tuple[int, int]] = []  # spans that no later one has swallowed yet: start, whole time
    for event in events:
        start, end = event[1], event[2]
        if event[0] not in _TIMED:
            spans.append(Span(event, end - start))
            continue
        inside = 0
        while open_top and open_top[-1][0] >= start:
            inside += open_top.pop()[1]
        open_top.append((start, end - start))
        spans.append(Span(event, end - start - inside))
    return spans


def evaluations(spans: Sequence[Span]) -> list[tuple[int, int]]:
    """Stretches of evaluation: from what came before the first call without gradients, to training."""
    found: list[tuple[int, int]] = []
    beginning = _Beginning()
    began: int | None = None
    until = 0
    for span in spans:
        event, kind = span.event, span.kind
        if kind == "forward" and not event[4]:
            if began is None:
                began = beginning.at_ns if beginning.at_ns is not None else event[1]
            until = max(until, event[2])
        elif kind in ("forward", "backward", "optimizer"):
            if began is not None:
                found.append((began, until))
            began, beginning = None, _Beginning()
        elif began is None:
            beginning.consider(event)
        elif (kind == "mode" and event[3]) or (kind == "loader" and event[3] == _END):
            until = max(until, event[2])
    if began is not None:
        found.append((began, until))
    return found


class _Beginning:
    """Where an evaluation would begin that is about to call the model.

    With `eval()`, where that was said. Else with its batch, by the loader that came last: the batch of the
    training loop may have been taken before.
    """

    def __init__(self) -> None:
        self.at_ns: int | None = None
        self._said = False
        self._loader: int | None = None

    def consider(self, event: Event) -> None:
        """Something happened that is no call of the model."""
        kind, start = event[0], event[1]
        if kind == "mode" and not event[3]:
            self.at_ns, self._said = start, True
        elif kind == "loader" and event[3] == _END:
            self.at_ns = self.at_ns if self._said else None
        elif kind == "loader" and not self._said:
            starts = event[3] == _START
            changes = self._loader is not None and self._loader != event[3]
            if starts or changes or self.at_ns is None:
                self.at_ns = start
            self._loader = None if starts else event[3]
        elif kind == "copy" and self.at_ns is None:
            self.at_ns = start


class _Calls:
    """The passes of a step, by when they began."""

    def __init__(self, spans: Sequence[Span]) -> None:
        passes = [(one.event[1], one.kind) for one in spans if one.kind in ("forward", "backward")]
        passes.sort(key=lambda one: one[0])
        self._starts = [start for start, _ in passes]
        self._kinds = [kind for _, kind in passes]

    def trains(self, forward: Event) -> bool:
        """In eval mode with gradients a call may train: then a backward comes before the next call."""
        if not forward[4] or forward[5]:
            return bool(forward[4])
        later = bisect.bisect_left(self._starts, forward[2])
        return later < len(self._kinds) and self._kinds[later] == "backward"


def _first_start(events: Sequence[Event], default: int) -> int:
    return min((event[1] for event in events), default=default)
