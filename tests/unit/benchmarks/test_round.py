"""A round of benchmarks: what is done is kept, and nothing outlives its step."""

import json
import os
import tarfile
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.round import STEPS, Step, run_round

WRITES = """
import pathlib, sys
print("said")
pathlib.Path(sys.argv[-1], "result.json").write_text("{}")
"""
# Says who it is, and ignores what it can.
STAYS = """
import os, pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
pathlib.Path(sys.argv[-1], "pids").write_text(f"{os.getpid()} {child.pid}")
time.sleep(600)
"""
LATE = """
import pathlib, sys, time
try:
    time.sleep(600)
except KeyboardInterrupt:
    pathlib.Path(sys.argv[-1], "result.json").write_text("{}")
"""


def step(code: str, seconds: float = 5.0) -> Step:
    return Step(seconds, ("-c", code))


def kept(out: Path) -> dict[str, bytes]:
    with tarfile.open(out / "round.tar.gz") as archive:
        return {one.name: archive.extractfile(one).read() for one in archive if one.isfile()}  # type: ignore[union-attr]


def test_what_steps_say_and_write_is_kept_after_each_of_them(tmp_path: Path) -> None:
    steps = {"good": step(WRITES), "bad": step("raise SystemExit(3)"), "long": step(WRITES, 1e6)}
    ended = run_round(list(steps), 60.0, tmp_path, "", steps)
    assert [one.outcome for one in ended[:2]] == ["ok", "exit code 3"]
    assert "left out" in ended[2].outcome
    found = kept(tmp_path)
    assert found["round/good/result.json"] == b"{}"
    assert found["round/good/log"] == b"said\n"
    assert [one["name"] for one in json.loads(found["round/round.json"])] == ["good", "bad", "long"]


def test_a_step_that_takes_too_long_may_write_down_how_far_it_came(tmp_path: Path) -> None:
    steps = {"late": step(LATE, 1.0)}
    [ended] = run_round(["late"], 600.0, tmp_path, "", steps)
    assert ended.outcome == "cut off"
    assert "round/late/result.json" in kept(tmp_path)


def test_whoever_stays_is_killed_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.round._GRACE_S", 1.0)
    steps: dict[str, Any] = {"stays": step(STAYS, 2.0), "next": step(WRITES)}
    ended = run_round(list(steps), 60.0, tmp_path, "", steps)
    assert [one.outcome for one in ended] == ["cut off", "ok"]
    pids = [int(word) for word in kept(tmp_path)["round/stays/pids"].split()]
    assert os.getpid() not in pids
    deadline = time.monotonic() + 10
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_step_finds_our_own_code_and_what_was_carried_wherever_it_stands(tmp_path: Path) -> None:
    carried = tmp_path / "carried"
    carried.mkdir()
    (carried / "only_carried.py").write_text("")
    code = "import os; os.chdir('/'); import only_carried, benchmarks, flatout, tempfile; tempfile.mkstemp()"
    steps = {"looks": Step(20.0, ("-c", code), has_result=False)}
    [ended] = run_round(["looks", "looks"], 60.0, tmp_path / "out", os.path.relpath(carried), steps)
    assert (ended.outcome, ended.last) == ("ok", "")
    assert set(kept(tmp_path / "out")) == {"round/looks/log", "round/round.json"}


def test_every_step_names_files_that_exist() -> None:
    root = Path(__file__).parents[3]
    for one in STEPS.values():
        if one.words[0] == "-c":
            continue
        if one.words[1] == "pytest":
            files = [word for word in one.words if word.startswith("tests/")]
            assert files
            assert all((root / word).exists() for word in files)
        else:
            assert (root / f"{one.words[1].replace('.', '/')}.py").exists()


def test_no_gpu_test_is_forgotten() -> None:
    named = {word for one in STEPS.values() for word in one.words}
    there = {f"tests/gpu/{path.name}" for path in Path(__file__).parents[2].glob("gpu/test_*.py")}
    assert there
    assert there <= named
