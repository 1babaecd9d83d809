"""What the server tells Prometheus, under OpenTelemetry's names where it has some.

http.server.* and gen_ai.server.* are its semantic conventions, written as its Prometheus exporter does:
dots become underscores, and a unit of seconds is part of the name. Buckets are those that it advises.
"""

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

HTTP_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
REQUEST_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
FIRST_TOKEN_SECONDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
)
TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
SIZES = tuple(float(2**power) for power in range(11))
# However many routes, models or methods a client makes up: no more series than these.
_MOST_SERIES = 200

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = tuple[str, ...]


class Counter:
    """Something that only grows, by labels."""

    kind = "counter"

    def __init__(self, name: str, words: str, labels: Sequence[str] = ()) -> None:
        self.name, self.words, self._labels = name, words, tuple(labels)
        self._values: dict[Labels, float] = {} if labels else {(): 0.0}

    def add(self, amount: float, *labels: str) -> None:
        """So much more."""
        if labels in self._values or len(self._values) < _MOST_SERIES:
            self._values[labels] = self._values.get(labels, 0.0) + amount

    def lines(self) -> Iterable[str]:
        """Its series."""
        for labels, value in list(self._values.items()):
            yield f"{self.name}{_named(self._labels, labels)} {_number(value)}"


class Gauge:
    """Something as it is when somebody asks."""

    kind = "gauge"

    def __init__(self, name: str, words: str, read: Callable[[], float | None]) -> None:
        self.name, self.words, self._read = name, words, read

    def lines(self) -> Iterable[str]:
        """One series, or none where it is unknown."""
        value = self._read()
        if value is not None:
            yield f"{self.name} {_number(value)}"


class Histogram:
    """How something is spread, by labels."""

    kind = "histogram"

    def __init__(self, name: str, words: str, bounds: Sequence[float], labels: Sequence[str] = ()) -> None:
        self.name, self.words = name, words
        self._bounds, self._labels = tuple(bounds), tuple(labels)
        self._series: dict[Labels, tuple[list[int], list[float]]] = {}
        self._lock = threading.Lock()

    def see(self, value: float, *labels: str) -> None:
        """One more."""
        with self._lock:
            found = self._series.get(labels)
            if found is None:
                if len(self._series) >= _MOST_SERIES:
                    return
                found = self._series[labels] = ([0] * (len(self._bounds) + 1), [0.0])
            found[0][bisect_left(self._bounds, value)] += 1
            found[1][0] += value

    def lines(self) -> Iterable[str]:
        """Its buckets, as Prometheus wants them: each with all below it."""
        with self._lock:
            copied = [(labels, list(counts), total[0]) for labels, (counts, total) in self._series.items()]
        for labels, counts, total in copied:
            so_far = 0
            for bound, count in zip((*map(_number, self._bounds), "+Inf"), counts, strict=True):
                so_far += count
                yield f"{self.name}_bucket{_named((*self._labels, 'le'), (*labels, bound))} {so_far}"
            yield f"{self.name}_sum{_named(self._labels, labels)} {_number(total)}"
            yield f"{self.name}_count{_named(self._labels, labels)} {so_far}"


Metric = Counter | Gauge | Histogram


def exposition(metrics: Iterable[Metric]) -> bytes:
    """The page that Prometheus reads."""
    parts: list[str] = []
    for metric in metrics:
        parts += [f"# HELP {metric.name} {metric.words}", f"# TYPE {metric.name} {metric.kind}"]
        parts += metric.lines()
    return ("\n".join(parts) + "\n").encode()


def _named(names: Sequence[str], values: Sequence[str]) -> str:
    if not names:
        return ""
    return (
        "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True)) + "}"
    )


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
