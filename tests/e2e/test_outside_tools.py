"""`flatout profile --nsys` and `--ncu`, with stand-ins for the tools that run the job and leave a file."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.jobs import ENDLESS, QUICK, Place, document, place_in
from tests.fakes.nsight_compute import MEMORY, SM, TIME, raw_page
from tests.fakes.nsight_systems import START_END, Export

# The words before the job's own are options; what the tool would have recorded is copied.
NSYS = """#!/bin/sh
case "$1" in
profile)
    shift
    for word; do case "$word" in --output=*) out="${word#--output=}"; break;; esac; done
    echo "$@" > "$out.words"
    [ -z "$BROKEN" ] || { echo "$BROKEN" >&2; exit 1; }
    while [ "${1#--}" != "$1" ]; do shift; done
    "$@" || exit $?
    [ -z "$RECORDED" ] || cp "$RECORDED" "$out.nsys-rep"
    ;;
export)
    for word; do case "$word" in --output=*) out="${word#--output=}";; esac; last="$word"; done
    [ -z "$CANNOT_EXPORT" ] || { echo "$CANNOT_EXPORT" >&2; exit 1; }
    cp "$last" "$out"
    ;;
esac
"""
NCU = """#!/bin/sh
words="$*"
while [ "${1#--}" != "$1" ]; do
    case "$1" in --csv) shift;; --log-file) out="$2"; shift 2;; *) shift 2;; esac
done
echo "$words" > "$out.words"
"$@" || exit $?
cp "$COUNTED" "$out"
"""
GEMM = "nvjet_sm90_tst_192x128"
SHORT = ("profile", "--no-limits", "--no-trace", "--steps", "4")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as made:
        yield made


@pytest.fixture
def tools(place: Place) -> dict[str, str]:
    """A folder with both, in front of PATH, and what they leave."""
    folder = place.work.parent / "tools"
    folder.mkdir()
    for name, text in (("nsys", NSYS), ("ncu", NCU)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    export = Export()
    for number in range(3):
        export.range(f"step {number}", 10 * number, 10, eventType=START_END)
        export.kernel(GEMM, 10 * number + 2, 6)
        export.call("cudaLaunchKernel_v7000", 10 * number + 1, 0.1)
    counted = folder / "counted.csv"
    counted.write_text(raw_page([(GEMM, {SM: 81.0, MEMORY: 33.0, TIME: 6100.0})]))
    recorded = export.write(folder / "recorded.sqlite")
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "RECORDED": str(recorded), "COUNTED": str(counted)}


def test_both_tools_run_the_job_and_say_what_they_saw(place: Place, tools: dict[str, str]) -> None:
    place.script(ENDLESS)
    before = place.snapshot()
    done = place.flatout(*SHORT, "--json", "--nsys", "--ncu", "train.py", **tools)
    assert done.returncode == 0, done.stderr
    found = document(done)
    assert (found["schema"], found["updates"]) == ("flatout.profile/1", 4)
    outside = found["outside"]
    assert {row["part"]: row["ms"] for row in outside["waterfall"]} == {"launch_gap": 4.0, "matmul": 6.0}
    assert [(row["kernel"], row["bound"], row["step_ms"]) for row in outside["counters"]] == [
        (GEMM, "compute", 6.0)
    ]
    assert place.snapshot() == before
    order = json.loads((place.trial("nsys") / "order.json").read_text())
    # Four steps pass, and four are seen; ncu sees one.
    assert (order["nvtx"], order["capture_from"], order["stop_after_updates"]) == (True, 5, 8)
    assert json.loads((place.trial("ncu") / "order.json").read_text())["stop_after_updates"] == 5
    words = (place.trial("nsys") / "report.words").read_text()
    assert "--trace=cuda,nvtx,osrt" in words
    assert "--capture-range=cudaProfilerApi" in words
    assert words.rstrip().endswith("train.py")
    words = (place.trial("ncu") / "kernels.csv.words").read_text()
    assert "--csv --page raw --set basic" in words
    assert "--target-processes all" in words
    # Both under a watched job: each made its updates.
    for name in ("nsys", "ncu"):
        assert list((place.trial(name) / "ranks").iterdir())


@pytest.mark.full
def test_on_a_terminal_it_stands_below_the_profile(place: Place, tools: dict[str, str]) -> None:
    place.script(QUICK + "for _ in range(6):\n    update()\n")
    done = place.flatout(*SHORT, "--nsys", "train.py", **tools)
    assert done.returncode == 0, done.stderr
    assert "a step" in done.stdout
    assert "where the time goes" in done.stdout
    assert "on NVIDIA H200" in done.stdout.replace("\n", " ")
    again = place.flatout("report", "latest")
    assert "where the time goes" in again.stdout


@pytest.mark.parametrize("tool", ["nsys", "ncu"])
def test_a_tool_that_is_not_there_is_said_before_anything_runs(place: Place, tool: str) -> None:
    if shutil.which(tool):
        pytest.skip(f"{tool} is installed here")
    place.script(ENDLESS)
    done = place.flatout("profile", f"--{tool}", "train.py")
    assert done.returncode == 3
    assert f"{tool} is not on PATH" in done.stderr
    assert "expected:" in done.stderr
    assert "try:" in done.stderr
    assert not (place.work / ".flatout" / "runs").exists()


@pytest.mark.full
def test_a_tool_that_leaves_nothing_is_said_below_the_profile(place: Place, tools: dict[str, str]) -> None:
    place.script(ENDLESS)
    done = place.flatout(*SHORT, "--nsys", "train.py", **{**tools, "RECORDED": ""})
    assert done.returncode == 3
    assert "nsys left no report after 8 updates" in done.stderr
    assert "a step" in done.stdout


@pytest.mark.full
def test_a_tool_that_does_not_start_the_job_is_at_fault_and_not_the_job(
    place: Place, tools: dict[str, str]
) -> None:
    place.script(ENDLESS)
    done = place.flatout(*SHORT, "--nsys", "train.py", **tools, BROKEN="unrecognised option '--cpuctxsw'")
    assert done.returncode == 3
    assert "nsys left no report after 0 updates" in done.stderr
    assert "unrecognised option" in done.stderr


@pytest.mark.full
def test_a_report_that_cannot_be_exported_is_said(place: Place, tools: dict[str, str]) -> None:
    place.script(ENDLESS)
    done = place.flatout(*SHORT, "--nsys", "train.py", **tools, CANNOT_EXPORT="the importer is missing")
    assert done.returncode == 3
    assert "nsys could not export its report: the importer is missing" in done.stderr


@pytest.mark.full
def test_counters_that_ncu_may_not_read_are_the_machines_fault(place: Place, tools: dict[str, str]) -> None:
    place.script(ENDLESS)
    refused = place.work.parent / "refused.csv"
    refused.write_text("==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - no permission to access counters\n")
    done = place.flatout(*SHORT, "--ncu", "train.py", **{**tools, "COUNTED": str(refused)})
    assert done.returncode == 3
    assert "ERR_NVGPUCTRPERM" in done.stderr
    assert "Traceback" not in done.stderr
