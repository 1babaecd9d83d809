"""`flatout trace` as a user meets it, on traces that torch.profiler itself wrote, and on those of Nsight."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.e2e.conftest import Run
from tests.fakes.nsight_compute import MEMORY, SM, TIME, raw_page
from tests.fakes.nsight_systems import START_END, Export

# torch's own, as its profiler starts and ends.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def real_trace(tmp_path_factory: Any) -> Path:
    """Six marked steps of a small training on the CPU, with Python's stacks."""
    model = torch.nn.Linear(64, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.utils.data.TensorDataset(torch.randn(256, 64), torch.randint(8, (256,)))
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    with torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=6, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
        with_stack=True,
        record_shapes=True,
    ) as profiler:
        for x, y in torch.utils.data.DataLoader(data, batch_size=32):
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    return path


def test_what_the_profiler_wrote_is_read_whole(flatout: Run, real_trace: Path) -> None:
    found = json.loads(flatout("trace", "--json", str(real_trace)).stdout)
    assert found["schema"] == "flatout.trace/1"
    written = json.loads(real_trace.read_text())["traceEvents"]
    assert found["events"] == sum(event["ph"] == "X" for event in written)
    assert (found["skipped_events"], found["steps"]) == (0, 6)
    shares = {row["part"]: row["share"] for row in found["waterfall"]}
    assert {"input_wait", "optimizer", "host_compute"} <= set(shares)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert "aten::addmm" in [row["name"] for row in found["operators"]]
    assert found["busy_share"] is None
    assert "no kernel" in found["unknown"]["busy_share"]


def test_compressed_it_says_the_same(flatout: Run, real_trace: Path, tmp_path: Path) -> None:
    packed = tmp_path / "trace.json.gz"
    with real_trace.open("rb") as source, gzip.open(packed, "wb") as target:
        shutil.copyfileobj(source, target)
    both = [json.loads(flatout("trace", "--json", str(path)).stdout) for path in (real_trace, packed)]
    for found in both:
        found.pop("files")
    assert both[0] == both[1]


def test_on_a_terminal(flatout: Run, real_trace: Path) -> None:
    done = flatout("trace", "--top", "3", str(real_trace), COLUMNS="80")
    assert "where the time goes" in done.stdout
    assert "this is what the host did" in done.stdout.replace("\n", " ")
    assert all(len(text) <= 80 for text in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        (b"", "empty"),
        (b'{"losses": [1, 2]}', "no list of trace events"),
        (b'{"traceEvents": []}', "no event"),
        (b"\x1f\x8bnot really", "decompressed"),
    ],
)
def test_what_cannot_be_read_is_said(flatout: Run, tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "trace.json"
    if content is not None:
        path.write_bytes(content)
    done = flatout("trace", str(path))
    assert done.returncode == 2
    assert says in done.stderr
    assert "trace.json" in done.stderr
    assert "Traceback" not in done.stderr


def test_names_from_a_trace_are_inert(flatout: Run, tmp_path: Path) -> None:
    evil = "\x1b[31m[bold]<script>alert(1)</script>\nsecond"
    event = {"ph": "X", "cat": "kernel", "name": evil, "pid": 0, "tid": 7, "ts": 1, "dur": 5}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [event]}))
    done = flatout("trace", str(path), COLUMNS="120")
    assert "\x1b" not in done.stdout
    assert "[bold]" in done.stdout
    assert not any(text.startswith("second") for text in done.stdout.splitlines())


@pytest.fixture
def nsight(tmp_path: Path) -> tuple[str, str]:
    """An export of nsys and a table of ncu, of the same three steps."""
    export = Export()
    for number in range(3):
        export.range(f"step {number}", 10 * number, 10, eventType=START_END)
        export.range("data", 10 * number, 2)
        export.kernel("nvjet_sm90_tst_192x128", 10 * number + 2, 6)
        export.call("cudaLaunchKernel_v7000", 10 * number + 1, 0.1)
    counters = tmp_path / "kernels.csv"
    counters.write_text(raw_page([("nvjet_sm90_tst_192x128", {SM: 81.0, MEMORY: 33.0, TIME: 6100.0})]))
    return str(export.write(tmp_path / "report.sqlite")), str(counters)


def test_what_nsys_exported_is_read_as_any_trace(flatout: Run, nsight: tuple[str, str]) -> None:
    found = json.loads(flatout("trace", "--json", nsight[0]).stdout)
    assert found["schema"] == "flatout.trace/1"
    assert (found["steps"], found["device_name"]) == (3, "NVIDIA H200")
    shares = {row["part"]: row["ms"] for row in found["waterfall"]}
    assert shares == {"input_wait": 2.0, "launch_gap": 2.0, "matmul": 6.0}


def test_counters_stand_beside_the_trace(flatout: Run, nsight: tuple[str, str]) -> None:
    [found] = json.loads(flatout("trace", "--json", *nsight).stdout)["counters"]
    assert (found["bound"], found["sm_share"], found["step_ms"]) == ("compute", 0.81, 6.0)
    drawn = flatout("trace", *nsight, COLUMNS="120").stdout
    assert "matmul, bound by compute" in drawn
    assert "ms a step" in drawn
    alone = flatout("trace", nsight[1], COLUMNS="100").stdout
    assert "launches counted: 1, kernels: 1" in " ".join(alone.split())
    narrow = flatout("trace", nsight[1], COLUMNS="60").stdout
    assert "SMs 81 %, memory 33 %, bound by compute" in " ".join(narrow.split())


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("report.nsys-rep", b"\x01\x02", "nsys export --type sqlite"),
        ("report.sqlite", b"SQLite format 3\x00", "SQLite cannot read it"),
        ("report.sqlite", b"", "empty"),
        ("kernels.csv", b"a,b\n1,2\n", "no head of a table of ncu's"),
    ],
)
def test_what_no_tool_wrote_is_said(
    flatout: Run, tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    done = flatout("trace", str(path))
    assert done.returncode == 2
    assert says in done.stderr
    assert name in done.stderr
    assert "Traceback" not in done.stderr


def test_a_page_is_written_where_it_was_asked_for(flatout: Run, real_trace: Path, tmp_path: Path) -> None:
    done = flatout("trace", "--html", "page.html", str(real_trace))
    assert done.returncode == 0, done.stderr
    assert "the picture: page.html" in done.stderr
    assert "Where the time goes" in (tmp_path / "page.html").read_text()
    refused = flatout("trace", "--html", "no/such/page.html", str(real_trace))
    assert refused.returncode == 2
    assert "there is no folder 'no/such'" in refused.stderr
