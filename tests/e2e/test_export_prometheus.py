"""A real Prometheus scrapes a real exporter: every query of every dashboard finds data, the rules hold."""

import dataclasses
import json
import math
import os
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flatout.monitor.export.catalogue import SPECS
from flatout.records.codec import encode
from flatout.records.live import (
    LIVE_FILE,
    LIVE_KIND,
    LIVE_VERSION,
    STEP_BUCKETS_S,
    LiveJob,
    LiveRank,
    LiveTotals,
    StepTimes,
)
from tests.e2e.exporting import ROOT, Exporting, until
from tests.fakes.nvml import FakeNvml

SHIPPED = ROOT / "src/flatout/monitor/shipped"
DASHBOARDS = sorted((SHIPPED / "grafana").glob("*.json"))
Ask = Callable[..., Any]


def tool(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path=str(ROOT / ".venv/tools/usr/bin"))
    if found is None:
        pytest.skip(f"{name} is not here; `make tools` gets it where apt-get works")
    return found


@pytest.fixture(scope="module")
def exporting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exporting]:
    """Three GPUs, one of them lost, one held and idle; three jobs whose files are written all the time."""
    folder = tmp_path_factory.mktemp("export")
    root = folder / ".flatout"
    ended = threading.Event()
    writer = threading.Thread(target=keep_writing, args=(root, ended), daemon=True)
    writer.start()
    until(lambda: list(root.glob(f"runs/*/{LIVE_FILE}")), "the jobs")
    words = ("--listen", "127.0.0.1:0", "--runs", str(root), "--dcgm-names", "--every", "0.5")
    with Exporting(folder, *words, gpus=3) as running:
        running.order("hold", [os.getpid(), 1 << 30])
        until(lambda: running.scrape().get(("flatout_device_up", "2")) == 1, "the GPUs")
        running.order("lose", 2)
        yield running
    ended.set()
    writer.join(10)


def keep_writing(root: Path, ended: threading.Event) -> None:
    began = time.time()
    while not ended.is_set():
        for job in jobs(began):
            folder = root / "runs" / job.run
            folder.mkdir(parents=True, exist_ok=True)
            part = folder / "live.part"
            part.write_bytes(encode(LIVE_KIND, LIVE_VERSION, job))
            part.replace(folder / LIVE_FILE)
        ended.wait(0.5)


def jobs(began: float) -> list[LiveJob]:
    now = time.time()
    ran_s = now - began
    counts = [0] * (len(STEP_BUCKETS_S) + 1)
    counts[4] = int(ran_s * 20)
    nvml = FakeNvml(3)
    training = LiveJob(
        run="train-1",
        name='train.py --name "quoted" \\ back',
        run_folder="",
        host="elsewhere",
        pid=os.getpid(),
        user="ada",
        state="training",
        started_at_unix_s=began,
        written_at_unix_s=now,
        updates=counts[4],
        updates_planned=100_000,
        step_s=0.02,
        best_step_s=0.015,
        samples_per_s=1600.0,
        tokens_per_s=1600.0 * 1024,
        mfu=0.31,
        headroom=1.8,
        loss=2.7,
        loss_scale=65536.0,
        data_wait_share=0.1,
        memory_peak_bytes=40 << 30,
        checkpoint_at_unix_s=now - 4000,
        checkpoint_update=1,
        usd_per_hour=7.5,
        ranks=tuple(
            LiveRank(rank=rank, pid=os.getpid(), updates=counts[4], step_s=0.02, silent_s=0.0)
            for rank in (0, 1)
        ),
        devices=(nvml.uuid(0), nvml.uuid(1)),
        totals=LiveTotals(
            steps=StepTimes(counts=tuple(counts), sum_s=ran_s * 0.4),
            samples=int(ran_s * 1600),
            tokens=int(ran_s * 1600) * 1024,
            data_wait_s=ran_s * 0.1,
            throttled_s={"thermal_software": ran_s * 0.05},
            energy_j=ran_s * 800,
            energy_source="counter",
            device_s=2 * ran_s,
            device_idle_s=0.2 * ran_s,
        ),
    )
    stalled = dataclasses.replace(training, run="stalled-2", state="stalled", devices=(nvml.uuid(0),))
    over = dataclasses.replace(training, run="over-3", state="ended", exit_code=0)
    return [training, stalled, over]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exporting]:
    """One more exporter, behind TLS and a token."""
    folder = tmp_path_factory.mktemp("guarded")
    words = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout key.pem -out cert.pem"
    )
    subprocess.run(
        [*words.split(), "-addext", "subjectAltName=IP:127.0.0.1"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    (folder / "token").write_text("s3cret-of-a-scraper\n")
    secure = ("--tls-cert", "cert.pem", "--tls-key", "key.pem", "--token-file", "token")
    with Exporting(folder, "--listen", "127.0.0.1:0", *secure, gpus=1) as running:
        yield running


@pytest.fixture(scope="module")
def ask(guarded: Exporting, exporting: Exporting, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """A real server that has scraped for a while; asks its API."""
    folder = tmp_path_factory.mktemp("prometheus")
    config = yaml.safe_load((SHIPPED / "prometheus/prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(SHIPPED / "prometheus/flatout.rules.yml")]
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [
        urllib.parse.urlparse(exporting.url).netloc
    ]
    config["scrape_configs"].append(
        {
            "job_name": "guarded",
            "scheme": "https",
            "authorization": {"credentials_file": str(guarded.folder / "token")},
            "tls_config": {"ca_file": str(guarded.folder / "cert.pem")},
            "static_configs": [{"targets": [urllib.parse.urlparse(guarded.url).netloc]}],
        }
    )
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [
                tool("prometheus"),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
            cwd=folder,
        )
    try:

        def get(path: str, **query: str) -> Any:
            url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
            with urllib.request.urlopen(url, timeout=20) as answer:
                return json.loads(answer.read())["data"]

        until(lambda: seen(get) >= 6, f"scrapes; its log is {folder / 'log'}")
        yield get
    finally:
        server.terminate()
        server.wait(30)


def seen(get: Ask) -> float:
    try:
        found = get("query", query='count_over_time(flatout_job_updates_total{run="train-1"}[1m])')["result"]
    except (urllib.error.URLError, ConnectionError):
        return 0
    return float(found[0]["value"][1]) if found else 0


def queries(dashboard: Path) -> list[tuple[str, str]]:
    document = json.loads(dashboard.read_text())
    return [(panel["title"], target["expr"]) for panel in document["panels"] for target in panel["targets"]]


def filled_in(query: str) -> str:
    for name, value in (("$__rate_interval", "10s"), ("$run", ".*"), ("$instance", ".*")):
        query = query.replace(name, value)
    assert "$" not in query, query
    return query


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_every_query_of_a_dashboard_finds_data(dashboard: Path, ask: Ask) -> None:
    def finds_data(query: str) -> bool:
        found = ask("query", query=filled_in(query))["result"]
        return any(math.isfinite(float(sample["value"][1])) for sample in found)

    for title, query in queries(dashboard):
        # A scrape that came too late on a busy machine leaves nothing to see until the next one.
        until(lambda query=query: finds_data(query), f"{title}: {query}")  # type: ignore[misc]
    for choice in json.loads(dashboard.read_text())["templating"]["list"]:
        if choice["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", choice["definition"]).groups()  # type: ignore[union-attr]
            assert ask(f"label/{label}/values", **{"match[]": metric})


def test_dashboards_ask_only_for_metrics_that_exist() -> None:
    known = {spec.name for specs in SPECS.values() for spec in specs} | {"flatout_job_step_seconds_bucket"}
    texts = [query for dashboard in DASHBOARDS for _, query in queries(dashboard)]
    texts += [(SHIPPED / "prometheus/flatout.rules.yml").read_text()]
    asked = {name for text in texts for name in re.findall(r"\bflatout_\w+", text)}
    assert asked <= known
    assert len(asked) > 40


def test_the_server_has_every_metric_and_no_trouble_with_any(ask: Ask) -> None:
    def both_are_up() -> bool:
        found = ask("targets")["activeTargets"]
        targets = {one["labels"]["job"]: (one["health"], one["lastError"]) for one in found}
        return targets == {"flatout": ("up", ""), "guarded": ("up", "")}

    until(both_are_up, "both targets, over TLS with a token, too")
    names = set(ask("label/__name__/values"))
    # A server has no use for these until something happens, or no fake GPU has them.
    without = {"flatout_exporter_labels_dropped_total", "flatout_device_xid_last", "flatout_device_fan_ratio"}
    missing = {
        spec.name + ("_bucket" if spec.kind == "histogram" else "")
        for specs in SPECS.values()
        for spec in specs
    } - names
    assert missing <= without
    assert {"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"} <= names
    [info] = ask("query", query='flatout_job_info{run="train-1"}')["result"]
    # Prometheus keeps `job` for itself.
    assert info["metric"]["exported_job"] == 'train.py --name "quoted" \\ back'
    kinds = ask("metadata")
    assert kinds["flatout_job_step_seconds"][0]["type"] == "histogram"
    assert kinds["flatout_device_xid"][0]["type"] == "counter"


def test_alerts_are_loaded_and_the_lost_gpu_and_the_stalled_job_are_on_their_way(ask: Ask) -> None:
    groups = ask("rules")["groups"]
    rules = {rule["name"]: rule for group in groups for rule in group["rules"]}
    assert all(rule["health"] in ("ok", "unknown") for rule in rules.values())
    wanted = {("FlatoutGpuDown", "2"), ("FlatoutJobStalled", "stalled-2")}

    def alerts() -> set[tuple[str, str]]:
        labels = [one["labels"] for one in ask("alerts")["alerts"]]
        return {(one["alertname"], one.get("run") or one.get("gpu")) for one in labels}

    pending = until(lambda: found if wanted <= (found := alerts()) else None, "both alerts")
    assert not any(name == "FlatoutExporterErrors" for name, _ in pending)


def test_promtool_has_nothing_to_say_against_the_metrics(exporting: Exporting) -> None:
    with urllib.request.urlopen(exporting.url, timeout=20) as answer:
        text = answer.read()
    ours = b"".join(line for line in text.splitlines(keepends=True) if b"DCGM_" not in line)
    done = subprocess.run([tool("promtool"), "check", "metrics"], input=ours, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize(
    "words",
    [
        ("check", "rules", "flatout.rules.yml"),
        ("test", "rules", "flatout.rules.test.yml"),
        ("check", "config", "prometheus.yml"),
    ],
)
def test_promtool_accepts_the_rules_and_their_tests(words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [tool("promtool"), *words], capture_output=True, text=True, timeout=60, cwd=SHIPPED / "prometheus"
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test() -> None:
    rules = yaml.safe_load((SHIPPED / "prometheus/flatout.rules.yml").read_text())
    tests = yaml.safe_load((SHIPPED / "prometheus/flatout.rules.test.yml").read_text())
    fired = {
        case["alertname"]
        for test in tests["tests"]
        for case in test["alert_rule_test"]
        if case.get("exp_alerts")
    }
    assert fired == {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
