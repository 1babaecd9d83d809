"""`flatout limits` as a user meets it, on the CPU."""

import json
import os
from pathlib import Path

import pytest

from tests.e2e.conftest import Run


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_measurement_is_printed_kept_drawn_and_read_again(flatout: Run, tmp_path: Path) -> None:
    # Other tests run beside this one: the machine is not quiet.
    first = flatout("limits", "--device", "cpu", "--json", "--accept-disturbed")
    assert first.returncode == 0, first.stderr
    document = json.loads(first.stdout)
    assert document["schema"] == "flatout.limits/1"
    assert document["device"]["vendor"] == "cpu"
    assert document["rated"] is None
    assert document["rated_reason"]
    assert document["measured"]["matmul_flops_per_s"]["fp32"] > 1e9
    assert document["measured"]["memory_bytes_per_s"] > 1e8
    assert document["measured"]["h2d_pinned_bytes_per_s"] is None
    [page] = (tmp_path / "cache" / "limits").glob("*.html")
    assert "<svg" in page.read_text()

    again = flatout("limits", "--device", "cpu", "--json", "--save")
    kept = json.loads(again.stdout)
    assert kept["from_cache"]
    assert kept["measured"] == document["measured"]
    assert "saved as" in again.stderr

    listed = flatout("report", "--json")
    [run] = json.loads(listed.stdout)["runs"]
    assert run["command"] == "limits"
    assert run["status"] == "done"
    assert "GFLOP/s" in flatout("report", "latest").stdout or "TFLOP/s" in flatout("report", "latest").stdout

    [file] = (tmp_path / "cache" / "limits").glob("*.json")
    file.write_bytes(file.read_bytes()[:100])
    damaged = flatout("limits", "--device", "cpu")
    assert damaged.returncode == 3
    assert "--fresh" in damaged.stderr
    assert len(file.read_bytes()) == 100


def test_a_folder_that_cannot_be_written_is_refused_before_measuring(flatout: Run) -> None:
    done = flatout("limits", "--device", "cpu", FLATOUT_CACHE_DIR="/proc/no-place")
    assert done.returncode == 3
    assert "cannot write" in done.stderr
    assert "--no-cache" in done.stderr


def test_without_torch_the_extra_is_named(flatout: Run, tmp_path: Path) -> None:
    # A metadata finder that knows no torch stands for an environment without it.
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.metadata as m\n"
        "real = m.version\n"
        "def version(name):\n"
        "    if name == 'torch': raise m.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "m.version = version\n"
    )
    done = flatout("limits", PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    assert done.returncode == 3
    assert "flatout[torch]" in done.stderr


@pytest.mark.full
def test_a_measurement_without_a_cache_writes_only_what_was_asked_for(flatout: Run, tmp_path: Path) -> None:
    options = ("--dtype", "fp32", "--no-cache", "--html", "page.html", "--ranks", "2")
    done = flatout("limits", "--device", "cpu", *options)
    assert done.returncode == 0, done.stderr
    assert "Between 2 processes over gloo" in done.stdout
    assert "bus rate" in (tmp_path / "page.html").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html"]
    assert "the picture: page.html" in done.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--ranks", "1"), "2"),
        (("--ranks", "2", "--no-link"), "one of them"),
        (("--ranks", "two"), "two"),
    ],
)
def test_ranks_that_make_no_sense_are_refused(flatout: Run, options: tuple[str, ...], told: str) -> None:
    done = flatout("limits", "--device", "cpu", *options)
    assert done.returncode == 2
    assert told in done.stderr
