"""Turns the newest frame into an answer for a scrape: once a second at most, whoever asks and how often."""

import dataclasses
import gzip
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from prometheus_client.core import Metric

from flatout.monitor.export.catalogue import COLLECTORS, Collector
from flatout.monitor.export.labels import Admission, LabelLimits
from flatout.monitor.export.look import Look, Price
from flatout.monitor.export.own import collect_own
from flatout.monitor.export.seen import Seen
from flatout.monitor.export.text import Format, write
from flatout.records.exporting import ExportedMetric, ExportedOnce, MetricSample
from flatout.records.watching import Frame

# Answers are shared for so long: nobody who scrapes more often learns more.
SHARED_S = 1.0


@dataclasses.dataclass
class _Shared:
    """A collection, and how it was written out so far."""

    made_at_s: float
    metrics: list[Metric]
    written: dict[tuple[Format, bool], bytes] = dataclasses.field(default_factory=dict)


class Exporter:
    """Reads frames that others take: a scrape never touches a device, and never waits for one.

    A collector that raises is counted, and the others are served. `beside` are parts that `failed` will be
    told of; `failed_looks` counts, by what was looked at, where no new frame says that something is wrong.
    """

    def __init__(
        self,
        frame: Callable[[], Frame],
        *,
        collectors: Mapping[str, Collector] = COLLECTORS,
        limits: LabelLimits = LabelLimits(),
        usd_per_hour: Price = lambda _device: None,
        failed_looks: Callable[[], Mapping[str, int]] = dict,
        beside: Sequence[str] = (),
        now_unix_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._frame = frame
        self._collectors = dict(collectors)
        self._limits = limits
        self._usd_per_hour = usd_per_hour
        self._now_unix_s = now_unix_s
        self._monotonic_s = monotonic_s
        self._seen = Seen()
        self._admission = Admission()
        # Told as 0 from the start: an alert on a rise needs something that it rose from.
        self._errors = Counter(dict.fromkeys(("frame", *self._collectors, *beside), 0))
        self._failed_looks = failed_looks
        self._scrapes = 0
        self._last_collect_s: float | None = None
        self._last_frame: Frame | None = None
        self._shared: _Shared | None = None
        self._lock = threading.Lock()
        self._counting = threading.Lock()
        self._started_unix_s = now_unix_s()

    def observe(self) -> Frame | None:
        """Take the newest frame into what adds up. To be called about as often as frames are taken."""
        try:
            frame = self._frame()
            self._seen.see(frame)
        except Exception:  # noqa: BLE001 - the last frame is told as what it is: old
            self.failed("frame")
            return self._last_frame
        self._last_frame = frame
        return frame

    def failed(self, part: str) -> None:
        """Count an error of a part beside the collectors, such as a file that cannot be written."""
        with self._counting:
            self._errors[part] += 1

    def sample_age_s(self) -> float:
        """How old the newest sample of any device is, the CPU's included; before the first, how old we are.

        One driver that blocks leaves the others fresh. When all are old, whoever takes them has stopped.
        """
        frame = self._last_frame
        taken = [sample.taken_at_unix_s for sample in frame.samples] if frame is not None else []
        return max(0.0, self._now_unix_s() - max(taken, default=self._started_unix_s))

    def collect(self) -> list[Metric]:
        """All families, from the newest frame."""
        started_s = self._monotonic_s()
        frame = self.observe()
        found: list[Metric] = []
        if frame is not None:
            look = self._look(frame)
            for name, collector in self._collectors.items():
                found += self._guarded(name, collector, look)
        self._last_collect_s = self._monotonic_s() - started_s
        found += collect_own(self._look(frame or Frame(host="", taken_at_unix_s=0.0)))
        return found

    def answer(self, form: Format, *, compressed: bool = False) -> bytes:
        """The body of an answer to a scrape."""
        with self._lock:
            self._scrapes += 1
            now_s = self._monotonic_s()
            if self._shared is None or now_s - self._shared.made_at_s >= SHARED_S:
                self._shared = _Shared(now_s, self.collect())
            return _written(self._shared, form, compressed=compressed)

    def _look(self, frame: Frame) -> Look:
        return Look(
            frame=frame,
            now_unix_s=self._now_unix_s(),
            seen=self._seen,
            admission=self._admission,
            limits=self._limits,
            usd_per_hour=self._usd_per_hour,
            errors={**self._failed_looks(), **self._errors},
            scrapes=self._scrapes,
            last_collect_s=self._last_collect_s,
        )

    def _guarded(self, name: str, collector: Collector, look: Look) -> list[Metric]:
        try:
            return list(collector(look))
        except Exception:  # noqa: BLE001 - counted, and the others are served
            self.failed(name)
            return []


def as_record(metrics: list[Metric]) -> ExportedOnce:
    """The same for programs that would rather read JSON."""
    return ExportedOnce(
        metrics=tuple(
            ExportedMetric(
                name=metric.name,
                kind=metric.type,
                help=metric.documentation,
                samples=tuple(
                    MetricSample(name=sample.name, labels=dict(sample.labels), value=float(sample.value))
                    for sample in metric.samples
                ),
            )
            for metric in metrics
            if metric.samples
        )
    )


def _written(shared: _Shared, form: Format, *, compressed: bool) -> bytes:
    if (form, compressed) not in shared.written:
        plain = shared.written.get((form, False)) or write(shared.metrics, form)
        shared.written[form, False] = plain
        if compressed:
            shared.written[form, True] = gzip.compress(plain, compresslevel=1)
    return shared.written[form, compressed]
