"""The exporter at work: frames are followed all the time, and told in the ways that were asked for."""

import contextlib
import dataclasses
import os
import re
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from flatout.hardware.catalogue import hour_price, price_table
from flatout.monitor.bearer import is_in_the_clear
from flatout.monitor.export.address import Address
from flatout.monitor.export.catalogue import COLLECTORS
from flatout.monitor.export.dcgm import collect_dcgm
from flatout.monitor.export.exporter import Exporter
from flatout.monitor.export.labels import LabelLimits
from flatout.monitor.export.look import Price
from flatout.monitor.export.otlp import OtlpPush
from flatout.monitor.export.repeated import Repeated
from flatout.monitor.export.server import MetricsServer, Security
from flatout.monitor.export.textfile import Textfile
from flatout.records.device import Device
from flatout.records.exporting import ExportStarted
from flatout.records.watching import Frame

# A driver that wakes its GPUs up needs seconds for each.
FIRST_LOOK_S = 20.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """What was asked for. Without an address nothing is served over HTTP."""

    address: Address | None
    security: Security = dataclasses.field(default_factory=Security)
    every_s: float = 1.0
    push_every_s: float = 15.0
    roots: tuple[Path, ...] = ()
    textfile: Path | None = None
    otlp_url: str = ""
    dcgm_names: bool = False
    limits: LabelLimits = dataclasses.field(default_factory=LabelLimits)


def exporter_for(
    request: ExportRequest,
    frame: Callable[[], Frame],
    failed_looks: Callable[[], Mapping[str, int]] = dict,
) -> Exporter:
    """With prices from the user's table, read once."""
    ways = {"textfile": request.textfile is not None, "otlp": bool(request.otlp_url)}
    return Exporter(
        frame,
        collectors={**COLLECTORS, **({"dcgm": collect_dcgm} if request.dcgm_names else {})},
        limits=request.limits,
        usd_per_hour=_prices(),
        failed_looks=failed_looks,
        beside=[way for way, is_asked_for in ways.items() if is_asked_for],
    )


def run_export(
    request: ExportRequest,
    exporter: Exporter,
    *,
    on_ready: Callable[[ExportStarted], None],
    on_trouble: Callable[[str], None],
) -> None:
    """Until an exception ends it, as Ctrl-C and SIGTERM do; then everything is put away."""
    with contextlib.ExitStack() as stack:
        # First what can fail for good: a port that is taken must not leave a file behind.
        server = (
            stack.enter_context(MetricsServer(request.address, exporter, request.security))
            if (request.address is not None)
            else None
        )
        warnings = (
            *exposure(request.address, request.security),
            *sent_in_the_clear(request.otlp_url, request.security),
        )
        report = _Troubles(exporter, on_trouble)
        stack.enter_context(
            Repeated("flatout-export-frames", exporter.observe, request.every_s, report.of("frame"))
        )
        textfile = _writing(stack, request, exporter, report)
        _pushing(stack, request, exporter, report)
        on_ready(
            ExportStarted(
                pid=os.getpid(),
                url=server.url if server else "",
                otlp_url=request.otlp_url,
                textfile=str(textfile.path) if textfile else "",
                every_s=request.every_s,
                warnings=warnings,
            )
        )
        if server is not None:
            server.serve_forever(poll_interval=0.25)
        else:
            threading.Event().wait()


def run_once(request: ExportRequest, exporter: Exporter) -> None:
    """One file, or one push."""
    if request.textfile is not None:
        Textfile(request.textfile, exporter).write()
    if request.otlp_url:
        with contextlib.closing(_push_to(request)) as push:
            push.push(exporter.collect())


def exposure(address: Address | None, security: Security) -> tuple[str, ...]:
    """What others can see who can reach the address."""
    if address is None or address.is_loopback:
        return ()
    missing = []
    if not security.token:
        missing.append(f"whoever can reach {address} can read names of jobs and users: --token-file FILE")
    if security.tls is None:
        missing.append(f"what is read from {address} travels unencrypted: --tls-cert FILE --tls-key FILE")
    return tuple(missing)


def sent_in_the_clear(otlp_url: str, security: Security) -> tuple[str, ...]:
    """Whether others on the way can read the token that goes with each push."""
    if not security.token or not is_in_the_clear(otlp_url):
        return ()
    return (f"the token travels unencrypted to {otlp_url}: push to https://, or leave --token-file away",)


class _Troubles:
    """Counts what goes wrong, and says it once a part, until that part has other troubles."""

    def __init__(self, exporter: Exporter, tell: Callable[[str], None]) -> None:
        self._exporter = exporter
        self._tell = tell
        self._told: dict[str, str] = {}

    def of(self, part: str) -> Callable[[Exception], None]:
        """For one part."""

        def failed(error: Exception) -> None:
            self._exporter.failed(part)
            # Seconds, ports and sizes that change from time to time make no other trouble of it.
            kind = re.sub(r"[\d.]+", "", str(error))
            if self._told.get(part) != kind:
                self._told[part] = kind
                self._tell(str(error))

        return failed


def _writing(
    stack: contextlib.ExitStack, request: ExportRequest, exporter: Exporter, report: _Troubles
) -> Textfile | None:
    if request.textfile is None:
        return None
    textfile = Textfile(request.textfile, exporter)
    textfile.write()  # a folder that refuses is said now
    stack.callback(textfile.remove)
    stack.enter_context(
        Repeated("flatout-export-file", textfile.write, request.push_every_s, report.of("textfile"))
    )
    return textfile


def _pushing(
    stack: contextlib.ExitStack, request: ExportRequest, exporter: Exporter, report: _Troubles
) -> None:
    if not request.otlp_url:
        return
    push = _push_to(request)
    stack.callback(push.close)
    stack.enter_context(
        Repeated(
            "flatout-export-otlp",
            lambda: push.push(exporter.collect()),
            request.push_every_s,
            report.of("otlp"),
        )
    )


def _push_to(request: ExportRequest) -> OtlpPush:
    return OtlpPush(request.otlp_url, socket.gethostname(), request.security.token)


def _prices() -> Price:
    table = price_table()
    known: dict[tuple[object, ...], float | None] = {}

    def price(device: Device) -> float | None:
        # What decides which entry of the catalogue it is: looked up once a kind, not once a scrape.
        key = (device.vendor, device.name, device.memory_total_bytes, device.core_count, device.parent_uuid)
        if key not in known:
            known[key] = hour_price([device], table).usd_per_gpu_hour
        return known[key]

    return price
