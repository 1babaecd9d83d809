"""`flatout export` as a user meets it, and while devices fail under it."""

import json
import re
import socket
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.detached import Detached
from tests.e2e.conftest import Run
from tests.e2e.exporting import Exporting, until

ANY_PORT = ("--listen", "127.0.0.1:0")


@pytest.fixture
def exporting(tmp_path: Path) -> Iterator[Exporting]:
    with Exporting(tmp_path, *ANY_PORT, "--every", "0.2", gpus=2) as running:
        until(lambda: running.scrape().get(("flatout_device_up", "1")) == 1, "the GPUs")
        yield running


def test_once_prints_metrics_that_can_be_parsed_without_a_gpu_too(flatout: Run) -> None:
    done = flatout("export", "--once")
    assert done.returncode == 0, done.stderr
    assert "flatout_node_memory_total_bytes" in done.stdout
    assert 'flatout_exporter_errors_total{collector="frame"} 0.0' in done.stdout
    assert done.stderr == ""
    document = json.loads(flatout("export", "--once", "--json").stdout)
    assert document["schema"] == "flatout.export/1"
    assert "flatout_node_devices" in {metric["name"] for metric in document["metrics"]}


def test_files_are_written_and_changed_ones_are_left_alone(flatout: Run, tmp_path: Path) -> None:
    done = flatout("export", "--files", "out", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    names = json.loads(done.stdout)["files"]
    assert {name.split("/")[0] for name in names} == {"grafana", "kubernetes", "prometheus", "systemd"}
    assert all((tmp_path / "out" / name).stat().st_size > 200 for name in names)
    rules = tmp_path / "out" / "prometheus" / "flatout.rules.yml"
    rules.write_text("mine")
    done = flatout("export", "--files", "out", cwd=tmp_path)
    assert (done.returncode, rules.read_text()) == (2, "mine")
    assert "flatout.rules.yml" in done.stderr
    assert flatout("export", "--files", "out", "--force", cwd=tmp_path).returncode == 0
    assert rules.read_text() != "mine"


def test_a_file_for_node_exporter_once(flatout: Run, tmp_path: Path) -> None:
    folder = tmp_path / "node"
    folder.mkdir()
    done = flatout("export", "--once", "--textfile", str(folder))
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "flatout_node_info" in (folder / "flatout.prom").read_text()
    document = json.loads(flatout("export", "--once", "--json", "--textfile", str(folder)).stdout)
    assert "flatout_node_devices" in {metric["name"] for metric in document["metrics"]}


def test_one_push_prints_its_document_where_that_was_asked_for(flatout: Run) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    came: list[int] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            came.append(len(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quietly."""

    with HTTPServer(("127.0.0.1", 0), Collector) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(server.serve_forever)
        words = ("export", "--once", "--otlp", f"http://127.0.0.1:{server.server_port}/v1/metrics")
        plain, document = flatout(*words), flatout(*words, "--json")
        server.shutdown()
    assert (plain.returncode, plain.stdout) == (0, ""), plain.stderr
    assert json.loads(document.stdout)["schema"] == "flatout.export/1", document.stderr
    assert len(came) == 2


def test_a_folder_for_node_exporter_that_is_not_there_is_refused_and_not_made(
    flatout: Run, tmp_path: Path
) -> None:
    done = flatout("export", "--once", "--textfile", str(tmp_path / "typo" / "node"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "is not there" in done.stderr
    assert not (tmp_path / "typo").exists()


def test_mistakes_are_named_with_a_way_out(flatout: Run, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = flatout("export", "--listen", f"127.0.0.1:{port}")
    assert done.returncode == 3
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in done.stderr
    for words in (
        ("--listen", "nowhere:port"),
        ("--runs", str(tmp_path / "missing")),
        ("--token-file", str(tmp_path / "missing")),
        ("--tls-cert", "x"),
        ("--otlp", "collector:4318"),
        ("--every", "60"),
    ):
        done = flatout("export", *words)
        assert done.returncode == 2, words
        assert "expected:" in done.stderr
        assert "Traceback" not in done.stderr


def test_it_serves_until_sigterm_and_then_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    folder.mkdir()
    with Exporting(tmp_path, *ANY_PORT, "--textfile", str(folder), gpus=1) as running:
        assert running.started["schema"] == "flatout.export/1"
        assert running.started["warnings"] == []
        until(lambda: ("flatout_device_up", "0") in running.scrape(), "the GPU")
        assert (folder / "flatout.prom").exists()
        assert running.end() == -15
        assert "Traceback" not in running.errors
        assert list(folder.iterdir()) == []
        port = int(re.search(r":(\d+)/", running.url)[1])  # type: ignore[index]
        socket.create_server(("127.0.0.1", port)).close()


def test_a_wider_address_warns(tmp_path: Path) -> None:
    with Exporting(tmp_path, "--listen", "0.0.0.0:0", gpus=1) as running:
        assert len(running.started["warnings"]) == 2


TRAINING = """
import time, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100_000):
    loss = model(torch.ones(8, 4)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
"""


def test_a_real_job_under_flatout_run_is_found_and_told(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    words = (sys.executable, "-m", "flatout", "run", "--as-written", "train.py")
    job = Detached(tmp_path, *words, FLATOUT_CACHE_DIR=str(tmp_path / "cache"))
    try:
        with Exporting(tmp_path, *ANY_PORT, "--every", "0.5", gpus=1) as running:

            def updates() -> float:
                return sum(
                    n for (name, _), n in running.scrape().items() if name == "flatout_job_updates_total"
                )

            before = until(updates, "its updates, without having been told where it runs")
            until(lambda: updates() > before, "more of them")
            with urllib.request.urlopen(running.url, timeout=20) as answer:
                text = answer.read().decode()
    finally:
        job.end()
    assert re.search(r'flatout_job_info{host=".*",job="train.py",run=".*",user=".*"} 1.0', text)
    assert re.search(r'flatout_job_state{run=".*",state="training"} 1.0', text)
    assert re.search(r'flatout_job_step_seconds_bucket{le="\+Inf",run=".*"} [1-9]', text)
    assert re.search(r'flatout_job_rank_position_updates{rank="0",run=".*"} [1-9]', text)


def test_many_scrapes_at_once_all_succeed_while_frames_change(exporting: Exporting) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: exporting.scrape(), range(200)))
    assert all(values["flatout_device_up", "0"] == 1 for values in answers)
    assert exporting.scrape()["flatout_exporter_errors_total", "devices"] == 0


# Faults while it runs ---------------------------------------------------------------------------------------


def test_one_lost_gpu_is_down_and_the_other_goes_on(exporting: Exporting) -> None:
    exporting.order("lose", 1)
    until(lambda: exporting.scrape().get(("flatout_device_up", "1")) == 0, "the loss")
    assert any("15" in name for name in exporting.fired())
    values = exporting.scrape()
    assert values["flatout_device_up", "0"] == 1
    assert ("flatout_device_power_watts", "1") not in values
    exporting.order("answer", "nvmlDeviceGetPowerUsage", 333_000, 0)
    until(lambda: exporting.scrape()["flatout_device_power_watts", "0"] == 333, "news of the other")
    exporting.order("heal_all")
    until(lambda: exporting.scrape().get(("flatout_device_up", "1")) == 1, "its return")


def test_a_call_that_blocks_makes_one_gpu_stale_and_no_scrape_waits(exporting: Exporting) -> None:
    exporting.order("block", "nvmlDeviceGetTemperature", 1)
    until(lambda: exporting.scrape().get(("flatout_device_up", "1")) == 0, "the block")
    assert exporting.fired()["block nvmlDeviceGetTemperature"] >= 1
    values = exporting.scrape()
    assert values["flatout_device_up", "0"] == 1
    assert values["flatout_node_devices", "stale"] == 1
    old = values["flatout_device_sample_age_seconds", "1"]
    until(lambda: exporting.scrape()["flatout_device_sample_age_seconds", "1"] > old, "its age")
    exporting.order("release")
    until(lambda: exporting.scrape().get(("flatout_device_up", "1")) == 1, "its return")


def test_a_driver_that_is_loaded_again_is_found_again(exporting: Exporting) -> None:
    exporting.order("lose_all", 999)
    until(lambda: exporting.scrape().get(("flatout_device_up", "0")) == 0, "the loss")
    assert any("999" in name for name in exporting.fired())
    assert exporting.scrape()["flatout_exporter_errors_total", "devices"] == 0
    exporting.order("heal_all")
    until(lambda: exporting.scrape().get(("flatout_device_up", "0")) == 1, "its return")
    assert ("flatout_device_power_watts", "1") in exporting.scrape()


def test_placeholders_of_the_driver_are_absent(exporting: Exporting) -> None:
    exporting.order("answer", "nvmlDeviceGetPowerUsage", 0xFFFFFFFF, 0)
    exporting.order("answer", "nvmlDeviceGetTotalEnergyConsumption", 2**63 - 1, 0)
    until(lambda: ("flatout_device_power_watts", "0") not in exporting.scrape(), "the placeholder")
    values = exporting.scrape()
    assert values["flatout_device_up", "0"] == 1
    assert values["flatout_device_power_watts", "1"] > 0
    assert values.get(("flatout_device_energy_joules_total", "0"), 0.0) < 1e9


def test_an_xid_is_counted(exporting: Exporting) -> None:
    assert exporting.scrape()["flatout_device_xid_total", "0"] == 0
    exporting.order("xid", 0, 79)
    until(lambda: exporting.scrape()["flatout_device_xid_total", "0"] == 1, "the Xid")
    assert exporting.scrape()["flatout_device_xid_last", "0"] == 79
    assert exporting.scrape()["flatout_device_xid_total", "1"] == 0


def test_a_reader_that_goes_away_is_no_trouble(exporting: Exporting) -> None:
    host, port = re.search(r"//(.*):(\d+)/", exporting.url).groups()  # type: ignore[union-attr]
    for _ in range(5):
        with socket.create_connection((host, int(port)), timeout=5) as raw:
            raw.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert exporting.scrape()["flatout_device_up", "0"] == 1
    assert exporting.errors == ""
