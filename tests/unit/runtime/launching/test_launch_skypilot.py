"""The task for SkyPilot: read by a YAML parser and by its own schema, and its script run by bash."""

import importlib.util
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from flatout.records.errors import CallerMistake
from flatout.records.launch import LaunchJob
from flatout.runtime.launching.checking import check_draft
from flatout.runtime.launching.skypilot import draft_skypilot
from tests.unit.runtime.launching.conftest import Make
from tests.unit.runtime.launching.test_shell_words import HOSTILE


def task(job: LaunchJob) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(draft_skypilot(job).text)
    return read


def executed(script: str, folder: Path, **environment: str) -> list[str]:
    """The words that `python` receives when bash runs `script` in `folder`."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    python = tools / "python"
    python.write_text("#!/bin/bash\nprintf '%s\\0' \"$@\"\n")
    python.chmod(0o755)
    variables = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", **environment}
    done = subprocess.run(["bash"], input=script.encode(), capture_output=True, env=variables, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().split("\0")[:-1]


@pytest.mark.skipif(importlib.util.find_spec("sky") is None, reason="skypilot is not installed")
def test_skypilots_schema_takes_all_of_it(make_job: Make) -> None:
    job = make_job(
        "skypilot",
        *("train.py", *HOSTILE),
        nodes=2,
        gpus=8,
        gpu="h100",
        cpus=32,
        memory_bytes=64 << 30,
        environment=("A=$(B)",),
        settings={"cloud": "aws/us-east-1", "bucket": "my-runs", "is_spot": True, "image": "team/train:1"},
    )
    draft = draft_skypilot(job)
    checks = {check.by: (check.outcome, check.reason) for check in check_draft(draft, "skypilot")}
    assert checks == {"bash -n": ("ok", ""), "yaml": ("ok", ""), "sky": ("ok", "")}
    draft.documents[0]["nodes"] = 2
    failed = [check.reason for check in check_draft(draft, "skypilot") if check.by == "sky"]
    assert "nodes" in failed[0]


def test_the_program_receives_its_words_as_they_were_given(make_job: Make, tmp_path: Path) -> None:
    words = executed(task(make_job("skypilot", "train.py", *HOSTILE, gpus=0))["run"], tmp_path)
    plan = ["--plan", "/tmp/flatout/flatout.toml"]
    assert words == ["-m", "flatout", "run", *plan, "--", "train.py", *HOSTILE]
    assert not (tmp_path / "owned").exists()


def test_nodes_meet_at_the_first(make_job: Make, tmp_path: Path) -> None:
    job = make_job("skypilot", nodes=2, gpus=8, gpu="h100-80gb", plan=None)
    about = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NODE_RANK": "1"}
    words = executed(task(job)["run"], tmp_path, SKYPILOT_NUM_GPUS_PER_NODE="8", **about)
    assert words[words.index("torch.distributed.run") + 1 :] == [
        *("--nnodes=2", "--nproc-per-node=8", "--node-rank=1", "--master-addr=10.0.0.1"),
        *("--master-port=29500", "train.py"),
    ]
    assert (task(job)["num_nodes"], task(job)["resources"]["accelerators"]) == (2, "H100:8")


def test_checkpoints_go_to_the_bucket_and_what_came_along_is_kept(make_job: Make, tmp_path: Path) -> None:
    job = make_job("skypilot", gpus=0, settings={"bucket": "my-runs", "checkpoints": "out dir/saved"})
    assert task(job)["file_mounts"]["/flatout-kept"] == {"name": "my-runs", "mode": "MOUNT_CACHED"}
    (tmp_path / "out dir" / "saved").mkdir(parents=True)
    (tmp_path / "out dir" / "saved" / "mine").touch()
    script = task(job)["run"].replace("/flatout-kept", str(tmp_path / "bucket"))
    for _ in range(2):
        executed(script, tmp_path)
    saved = tmp_path / "out dir" / "saved"
    assert saved.is_symlink()
    assert saved.resolve() == (tmp_path / "bucket" / "train" / "checkpoints").resolve()
    assert (tmp_path / "out dir" / "saved.came-along" / "mine").exists()


def test_what_protects_a_script_lies_in_the_bucket_too(make_job: Make, tmp_path: Path) -> None:
    job = make_job("skypilot", gpus=0, is_protected=True, settings={"bucket": "my-runs"})
    script = task(job)["run"].replace("/flatout-kept", str(tmp_path / "bucket"))
    assert "--protect" in executed(script, tmp_path)
    assert (tmp_path / ".flatout").resolve() == (tmp_path / "bucket" / "train" / "runs").resolve()


def test_the_plan_is_taken_along(make_job: Make) -> None:
    assert task(make_job("skypilot", gpus=0))["file_mounts"] == {"/tmp/flatout/flatout.toml": "flatout.toml"}
    assert "file_mounts" not in task(make_job("skypilot", gpus=0, plan=None))


def test_a_broken_setup_is_found_before_it_is_shown(make_job: Make) -> None:
    draft = draft_skypilot(make_job("skypilot", gpus=0, settings={"setup": "if true; then"}))
    failed = [check.by for check in check_draft(draft, "skypilot") if check.outcome == "failed"]
    assert failed == ["bash -n"]


@pytest.mark.parametrize(
    ("words", "options", "said"),
    [
        (("train.py",), {"gpus": 1}, "what SkyPilot calls"),
        (("train.py",), {"gpus": 0, "is_protected": True}, "no --bucket"),
        (("../train.py",), {"gpus": 0}, "not in this folder|no script"),
        (("train.py",), {"gpus": 0, "settings": {"setup": ""}}, "neither --image nor --setup"),
    ],
)
def test_what_skypilot_cannot_do_is_refused(
    make_job: Make, words: tuple[str, ...], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(CallerMistake, match=said):
        draft_skypilot(make_job("skypilot", *words, **options))
