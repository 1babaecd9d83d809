"""What goes into TensorBoard, W&B and MLflow is read back by their own means."""

import importlib.util
import json
import math
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flatout.records.points import Point, line_of

# Out of order, twice at one step, not finite, and a name that is none of the usual.
POINTS = [
    Point(0, 1700000000.0, {"loss": 1.5, "lr": 3e-4}),
    Point(5, 1700000001.0, {"loss": 0.25, "flatout/gpu0/power_watts": 700.0}),
    Point(2, 1700000002.0, {"loss": 0.75, "odd": math.nan, "big": math.inf}),
    Point(5, 1700000003.0, {"accuracy @ 5 %": 0.5}),
]

_WRITE = """
import sys
from flatout.monitor.sinks.catalogue import target
from flatout.monitor.sinks.protocol import About
from flatout.records.points import point_of
points = [point_of(line) for line in open("points.jsonl")]
sink = target(sys.argv[1], sys.argv[2]).open(About(name="the run", facts={"command": "train.py"}))
assert "torch" not in sys.modules, "a sink brought torch along"
sink.write(points[:2])
sink.write(points[2:])
sink.close()
"""

_END = """
import sys
from flatout.monitor.sinks.catalogue import target
from flatout.monitor.sinks.protocol import About, ending_of
code, signal = (int(word) if word else None for word in sys.argv[3:5])
target(sys.argv[1], sys.argv[2]).open(About()).close(ending_of(code, signal))
"""

_READ_TENSORBOARD = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
found = EventAccumulator(sys.argv[2], size_guidance={"scalars": 0})
found.Reload()
tags = found.Tags()["scalars"]
print(json.dumps({tag: [[e.step, e.value, e.wall_time] for e in found.Scalars(tag)] for tag in tags}))
"""

_READ_MLFLOW = """
import json, sys, mlflow
client = mlflow.MlflowClient()
experiment = client.get_experiment_by_name(sys.argv[2])
[run] = client.search_runs([experiment.experiment_id])
assert (run.info.run_name, run.info.status, run.data.tags["command"]) == ("the run", "FINISHED", "train.py")
names = list(run.data.metrics)
def history(name):
    return [[m.step, m.value, m.timestamp / 1000] for m in client.get_metric_history(run.info.run_id, name)]
print(json.dumps({name: history(name) for name in names}))
"""


def needs(package: str) -> pytest.MarkDecorator:
    there = importlib.util.find_spec(package) is not None
    return pytest.mark.skipif(not there, reason=f"needs {package}: pip install 'flatout[{package}]'")


def python(script: str, *arguments: str, cwd: Path, **environment: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "points.jsonl").write_text("".join(f"{line_of(point)}\n" for point in POINTS))
    return tmp_path


@needs("tensorboard")
def test_tensorboard_shows_every_value_at_its_step_and_time(place: Path) -> None:
    python(_WRITE, "tensorboard", "runs/x", cwd=place)
    found = json.loads(python(_READ_TENSORBOARD, "tensorboard", "runs/x", cwd=place))
    assert found["loss"] == [[0, 1.5, 1700000000.0], [5, 0.25, 1700000001.0], [2, 0.75, 1700000002.0]]
    assert found["lr"][0][1] == pytest.approx(3e-4)
    assert math.isnan(found["odd"][0][1])
    assert found["big"][0][1] == math.inf
    assert found["accuracy @ 5 %"] == [[5, 0.5, 1700000003.0]]
    assert found["flatout/gpu0/power_watts"][0][1] == 700.0


@needs("wandb")
def test_wandb_keeps_every_row_offline_also_steps_that_go_back(place: Path) -> None:
    python(_WRITE, "wandb", "the-project", cwd=place, WANDB_MODE="offline", WANDB_DIR=str(place))
    [file] = place.glob("wandb/offline-run-*/*.wandb")
    rows = [
        {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in _wandb_records(file)
        if record.WhichOneof("record_type") == "history"
    ]
    assert [row["step"] for row in rows] == [0, 5, 2, 5]
    assert [row.get("loss") for row in rows] == [1.5, 0.25, 0.75, None]
    assert rows[1]["flatout/gpu0/power_watts"] == 700.0
    assert rows[2]["odd"] == "NaN" or math.isnan(rows[2]["odd"])
    assert rows[0]["_timestamp"] == 1700000000.0


@needs("mlflow")
@pytest.mark.parametrize("store", ["files", pytest.param("sqlite", marks=pytest.mark.full)])
def test_mlflow_keeps_the_history_of_every_metric(place: Path, store: str) -> None:
    if store == "sqlite" and importlib.util.find_spec("sqlalchemy") is None:
        pytest.skip("needs sqlalchemy, which mlflow-skinny comes without")
    uri = (place / "mlruns").as_uri() if store == "files" else f"sqlite:///{place / 'mlflow.db'}"
    where = {
        "MLFLOW_TRACKING_URI": uri,
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    python(_WRITE, "mlflow", "the experiment", cwd=place, **where)
    found = json.loads(python(_READ_MLFLOW, "mlflow", "the experiment", cwd=place, **where))
    assert found["loss"] == [[0, 1.5, 1700000000.0], [5, 0.25, 1700000001.0], [2, 0.75, 1700000002.0]]
    assert found["accuracy _ 5 _"] == [[5, 0.5, 1700000003.0]]
    assert found["big"][0][1] > 1e300
    assert found["flatout/gpu0/power_watts"][0][1] == 700.0


_READ_STATUS = """
import mlflow
client = mlflow.MlflowClient()
[run] = client.search_runs([client.get_experiment_by_name("ends").experiment_id])
print(run.info.status)
"""
_ENDINGS = [
    ("1", "", "FAILED", 1),
    pytest.param("", "9", "KILLED", 137, marks=pytest.mark.full),
]


@needs("mlflow")
@pytest.mark.parametrize(("exit_code", "signal", "status", "_code"), _ENDINGS)
def test_mlflow_lists_a_job_by_how_it_ended(
    place: Path, exit_code: str, signal: str, status: str, _code: int
) -> None:
    where = {"MLFLOW_TRACKING_URI": (place / "mlruns").as_uri(), "MLFLOW_ALLOW_FILE_STORE": "true"}
    python(_END, "mlflow", "ends", exit_code, signal, cwd=place, **where)
    assert python(_READ_STATUS, cwd=place, **where).strip() == status


@needs("wandb")
@pytest.mark.parametrize(("exit_code", "signal", "_status", "code"), _ENDINGS)
def test_wandb_keeps_what_a_job_ended_with(
    place: Path, exit_code: str, signal: str, _status: str, code: int
) -> None:
    python(_END, "wandb", "ends", exit_code, signal, cwd=place, WANDB_MODE="offline", WANDB_DIR=str(place))
    [file] = place.glob("wandb/offline-run-*/*.wandb")
    [end] = [record.exit for record in _wandb_records(file) if record.WhichOneof("record_type") == "exit"]
    assert end.exit_code == code


_INTO_A_RUN_OF_THEIRS = """
import json, mlflow, flatout
mlflow.set_experiment("theirs")
with mlflow.start_run() as run:
    flatout.log.to("mlflow", "ours")
    flatout.log({"loss": 0.5}, step=3)
    assert flatout.log.flush(60)
    flatout.log.close()
    assert mlflow.active_run().info.run_id == run.info.run_id
client = mlflow.MlflowClient()
assert client.get_experiment_by_name("ours") is None
print(json.dumps([[m.step, m.value] for m in client.get_metric_history(run.info.run_id, "loss")]))
"""


@needs("mlflow")
def test_a_run_that_the_script_began_is_used_and_left_open(place: Path) -> None:
    where = {"MLFLOW_TRACKING_URI": (place / "mlruns").as_uri(), "MLFLOW_ALLOW_FILE_STORE": "true"}
    assert json.loads(python(_INTO_A_RUN_OF_THEIRS, cwd=place, **where)) == [[3, 0.5]]


_INTO_A_WANDB_RUN_OF_THEIRS = """
import wandb, flatout
run = wandb.init(project="theirs", settings=wandb.Settings(console="off"))
flatout.log.to("wandb", "ours")
flatout.log({"loss": 0.5}, step=3)
flatout.log.close()
run.log({"still": 1.0})
run.finish()
"""


@needs("wandb")
def test_a_wandb_run_that_the_script_began_is_used_and_left_open(place: Path) -> None:
    python(_INTO_A_WANDB_RUN_OF_THEIRS, cwd=place, WANDB_MODE="offline", WANDB_DIR=str(place))
    [file] = place.glob("wandb/offline-run-*/*.wandb")
    rows = [
        {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in _wandb_records(file)
        if record.WhichOneof("record_type") == "history"
    ]
    assert (rows[0]["loss"], rows[0]["flatout/step"]) == (0.5, 3)
    assert rows[1]["still"] == 1.0
    # Their own charts keep the axis that they have.
    over = {
        metric.glob_name or metric.name: metric.step_metric
        for record in _wandb_records(file)
        if (metric := record.metric) and record.WhichOneof("record_type") == "metric"
    }
    assert over == {"flatout/step": "", "loss": "flatout/step"}


def _wandb_records(path: Path) -> Iterator[Any]:
    """W&B's own log of a run: as LevelDB writes them, in blocks of 32 KiB, after a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    data, place, parts = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:  # the rest of a block
            place += 32768 - place % 32768
            continue
        _, size, kind = struct.unpack_from("<IHB", data, place)
        parts += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""
