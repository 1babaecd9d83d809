"""Other ways out than a scrape: a file for node_exporter, and OTLP."""

import gzip
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from flatout.monitor.export.exporter import Exporter
from flatout.monitor.export.otlp import OtlpPush
from flatout.monitor.export.repeated import Repeated
from flatout.monitor.export.textfile import Textfile
from flatout.records.errors import CallerMistake, CannotWrite, EnvironmentProblem, MissingExtra
from tests.unit.monitor.export.frames import frame_of, fresh, gpu, job


def exporter() -> Exporter:
    return Exporter(lambda: fresh(frame_of(gpu(), live_jobs=(job(),))))


def test_a_file_for_node_exporter_is_whole_at_any_instant_and_gone_at_the_end(tmp_path: Path) -> None:
    textfile = Textfile(tmp_path / "node", exporter())
    textfile.write()
    assert textfile.path.read_bytes().startswith(b"# HELP flatout_device_info")
    torn: list[bytes] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            data = textfile.path.read_bytes()
            if not data.endswith(b"\n") or b"flatout_exporter_scrapes_total" not in data:
                torn.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(50):
        textfile.write()
    done.set()
    reader.join()
    assert not torn
    assert [path.name for path in textfile.path.parent.iterdir()] == ["flatout.prom"]
    assert textfile.path.stat().st_mode & 0o444 == 0o444, "node_exporter runs as another user"
    textfile.remove()
    assert not textfile.path.exists()


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotWrite):
        Textfile(tmp_path / "file", exporter()).write()


def test_what_is_repeated_goes_on_after_an_error() -> None:
    calls: list[int] = []
    errors: list[Exception] = []
    enough = threading.Event()

    def work() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("planted")
        if len(calls) == 3:
            enough.set()

    with Repeated("test", work, 0.001, errors.append):
        assert enough.wait(20)
    assert [str(error) for error in errors] == ["planted"]


class Collector(HTTPServer):
    """Takes OTLP over HTTP, and keeps what came."""

    def __init__(self) -> None:
        self.bodies: list[tuple[str, bytes, str]] = []
        self.code = 200
        super().__init__(("127.0.0.1", 0), Taking)


class Taking(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            data = gzip.decompress(data)
        self.server.bodies.append((self.path, data, self.headers.get("Authorization", "")))
        self.send_response(self.server.code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


def received(data: bytes) -> tuple[dict[str, str], dict[str, Any]]:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    request = ExportMetricsServiceRequest.FromString(data)
    [resource] = request.resource_metrics
    about = {one.key: one.value.string_value for one in resource.resource.attributes}
    return about, {metric.name: metric for metric in resource.scope_metrics[0].metrics}


def test_a_collector_gets_gauges_sums_and_histograms(collector: Collector) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra otel is not installed")
    push = OtlpPush(f"http://127.0.0.1:{collector.server_port}/v1/metrics", "box", token="s3cret")
    push.push(exporter().collect())
    push.close()
    [(path, data, authorization)] = collector.bodies
    assert (path, authorization) == ("/v1/metrics", "Bearer s3cret")
    about, metrics = received(data)
    assert about["host.name"] == "box"
    [power] = metrics["flatout_device_power_watts"].gauge.data_points
    assert power.as_double == pytest.approx(125.048)
    assert {one.key: one.value.string_value for one in power.attributes} == {"gpu": "0", "uuid": "GPU-0"}
    updates = metrics["flatout_job_updates_total"].sum
    assert updates.is_monotonic
    assert updates.data_points[0].as_double == 42
    assert updates.data_points[0].start_time_unix_nano == 0, "it counts from a time that nobody knows"
    [steps] = metrics["flatout_job_step_seconds"].histogram.data_points
    assert (steps.count, steps.sum, sum(steps.bucket_counts)) == (42, 702, 42)
    assert steps.bucket_counts[-1] == 2
    assert not steps.HasField("min"), "unknown is absent"
    assert len(steps.bucket_counts) == len(steps.explicit_bounds) + 1


def test_a_collector_that_refuses_is_an_error_and_the_sdk_says_nothing_beside_it(
    collector: Collector, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra otel is not installed")
    collector.code = 400
    push = OtlpPush(f"http://127.0.0.1:{collector.server_port}/v1/metrics", "box")
    with pytest.raises(EnvironmentProblem, match=r"did not take the metrics: .*400"):
        push.push(exporter().collect())
    push.close()
    assert capfd.readouterr().err == ""


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(MissingExtra, match=r"flatout\[otel\]"):
        OtlpPush("http://127.0.0.1:1/v1/metrics", "box")


def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(CallerMistake):
        OtlpPush("127.0.0.1:4318", "box")
