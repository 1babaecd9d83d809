"""`flatout launch` as a user runs it: what is shown, written, refused and handed in."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.conftest import Run

PLAN = 'version = 1\n\n[job]\nscript = "train.py"\nscript_sha256 = ""\narguments = []\n'
KUBERNETES = ("--to", "kubernetes", "--image", "team/train:1")
SKYPILOT = ("--to", "skypilot", "--gpus", "0", "--setup", "true")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print('hello')\n")
    (tmp_path / "flatout.toml").write_text(PLAN)
    return tmp_path


def tool(folder: Path, name: str, script: str) -> str:
    """A stand-in for a scheduler's tool; the PATH with it."""
    (folder / "bin").mkdir(exist_ok=True)
    path = folder / "bin" / name
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)
    return f"{folder / 'bin'}:/usr/bin:/bin"


def without_tools(folder: Path) -> str:
    """A PATH with bash alone."""
    (folder / "bare").mkdir(exist_ok=True)
    link = folder / "bare" / "bash"
    if not link.exists():
        link.symlink_to("/bin/bash")
    return str(folder / "bare")


def test_the_file_goes_to_standard_output_and_words_about_it_beside(flatout: Run, work: Path) -> None:
    done = flatout("launch", *KUBERNETES, "train.py", "--lr", "3e-4")
    assert done.returncode == 0, done.stderr
    kinds = [document["kind"] for document in yaml.safe_load_all(done.stdout)]
    assert kinds == ["ConfigMap", "PersistentVolumeClaim", "TrainingRuntime", "TrainJob"]
    assert "kubectl apply -f train.yaml" in done.stderr
    assert "kubeflow_trainer_api" in done.stderr
    assert not list(work.glob("*.yaml"))
    assert flatout("launch", "-q", *KUBERNETES, "train.py").stderr == ""


def test_a_program_gets_one_document(flatout: Run, work: Path) -> None:
    done = flatout("launch", *SKYPILOT, "--json", "train.py", PATH=without_tools(work))
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["schema"] == "flatout.launch/1"
    assert (found["target"], found["name"], found["nodes"], found["file"]) == ("skypilot", "train", 1, None)
    assert yaml.safe_load(found["text"])["name"] == "train"
    assert {check["by"]: check["outcome"] for check in found["checks"]}["bash -n"] == "ok"
    assert found["submitted"] is False


def test_a_file_of_other_content_is_never_overwritten_unasked(flatout: Run, work: Path) -> None:
    words = ("launch", "--to", "slurm", "--out", "train.sbatch")
    path = without_tools(work)
    assert flatout(*words, "train.py", PATH=path).returncode == 0
    first = (work / "train.sbatch").read_text()
    assert flatout(*words, "train.py", PATH=path).returncode == 0  # the same once more
    refused = flatout(*words, "train.py", "--lr", "1", PATH=path)
    assert (refused.returncode, (work / "train.sbatch").read_text()) == (2, first)
    assert "--force" in refused.stderr
    assert flatout(*words, "--force", "train.py", "--lr", "1", PATH=path).returncode == 0
    assert "--lr 1" in (work / "train.sbatch").read_text()


def test_it_is_handed_in_only_when_asked_to(flatout: Run, work: Path) -> None:
    path = tool(
        work, "sbatch", '[ "$1" = --test-only ] || { echo "$@" > handed-in; echo Submitted batch job 7; }'
    )
    assert flatout("launch", "--to", "slurm", "--out", "a.sbatch", "train.py", PATH=path).returncode == 0
    assert not (work / "handed-in").exists()
    done = flatout("launch", "--to", "slurm", "--submit", "train.py", PATH=path)
    assert (done.returncode, (work / "handed-in").read_text()) == (0, "train.sbatch\n")
    assert "Submitted batch job 7" in done.stderr


def test_what_the_cluster_says_no_to_is_not_handed_in(flatout: Run, work: Path) -> None:
    path = tool(
        work, "sbatch", '[ "$1" = --test-only ] && { echo no such partition >&2; exit 1; }; touch handed-in'
    )
    done = flatout("launch", "--to", "slurm", "--submit", "--partition", "nix", "train.py", PATH=path)
    assert done.returncode == 1
    assert "no such partition" in done.stderr
    assert not (work / "handed-in").exists()


@pytest.mark.parametrize(
    ("target", "missing"), [(("--to", "slurm"), "sbatch"), (KUBERNETES, "kubectl"), (SKYPILOT, "sky")]
)
def test_without_the_tool_there_is_nobody_to_hand_it_to(
    flatout: Run, work: Path, target: tuple[str, ...], missing: str
) -> None:
    done = flatout("launch", *target, "--submit", "train.py", PATH=without_tools(work))
    assert done.returncode == 3
    assert f"there is no {missing}" in done.stderr
    assert not list(work.glob("train.*l")) + list(work.glob("*.sbatch"))


def test_the_plan_of_another_script_is_used_where_it_is_named(flatout: Run, work: Path) -> None:
    (work / "other.py").write_text("print('another')\n")
    refused = flatout("launch", "--to", "slurm", "other.py")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "was made for another script: train.py" in refused.stderr
    named = flatout("launch", "--to", "slurm", "--plan", "flatout.toml", "other.py")
    assert named.returncode in (0, 1)
    assert "flatout.toml" in named.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--to", "lsf", "train.py"), "unknown target 'lsf'"),
        (("train.py",), "Missing option '--to'"),
        (("--to", "slurm", "--image", "x", "train.py"), "--image has no meaning for slurm"),
        (("--to", "slurm", "--checkpoints", "x", "train.py"), "--checkpoints has no meaning for slurm"),
        ((*KUBERNETES, "--partition", "x", "train.py"), "--partition has no meaning for kubernetes"),
        ((*SKYPILOT, "--time", "1h", "train.py"), "--time has no meaning for skypilot"),
        ((*SKYPILOT, "--grace", "2m", "train.py"), "--grace has no meaning for skypilot"),
        (("--to", "slurm", "--plan", "nix.toml", "train.py"), "nix.toml"),
        (("--to", "slurm", "tran.py"), "did you mean 'train.py'"),
        (("--to", "slurm", "--gpu", "h1oo", "train.py"), "unknown GPU"),
        (("--to", "slurm", "--out", ".", "train.py"), "is a folder"),
        (
            ("--to", "slurm", "--nodes", "2", "--", "accelerate", "launch", "train.py"),
            "name the script itself",
        ),
    ],
)
def test_mistakes_are_named_and_nothing_is_written(
    flatout: Run, work: Path, words: tuple[str, ...], said: str
) -> None:
    before = sorted(work.iterdir())
    done = flatout("launch", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert sorted(work.iterdir()) == before


def test_the_first_process_of_a_container_tells_how_its_job_ended(work: Path) -> None:
    (work / "killed.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n")
    words = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
    if subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip("no namespaces of one's own here")
    run = [sys.executable, "-m", "flatout", "run", "--as-written", "killed.py"]
    assert subprocess.run([*words, *run], cwd=work, capture_output=True, timeout=60).returncode == 143
