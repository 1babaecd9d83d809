"""What was typed and has no use is refused, never dropped."""

import contextlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from flatout.cli import cost, fit, patch, run, serve
from flatout.cli.agents.tools import TOOLS
from flatout.cli.next_step.advice import Here, suggestions
from flatout.cli.options import Duration
from flatout.records.errors import CallerMistake
from flatout.records.next_step import MachineHere
from flatout.records.plan import Choice, Fingerprint, Plan
from flatout.records.runs import RunFolder


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--load m.safetensors --max-memory 3GiB", "--max-memory"),
        ("--load m.safetensors --batch 4", "--batch"),
        ("--load m.safetensors train.py --lr 3", "train.py"),
        ("--hf m train.py", "train.py"),
        ("--hf m --gpus 2", "--gpus"),
        ("--hf m --load m.safetensors", "--hf"),
        ("--step-ms 4 train.py", "--step-ms"),
        ("--context 64 train.py", "--context"),
    ],
)
def test_fit_names_what_it_would_not_heed(words: str, named: str) -> None:
    done = CliRunner().invoke(fit.command, words.split())
    if isinstance(done.exception, CallerMistake):
        assert done.exception.received.startswith(f"{named} has no meaning beside --")
    else:
        assert done.exit_code == 2
        assert f"{named} is for" in done.output


@pytest.mark.parametrize(
    ("words", "named"),
    [("model:make", "model:make"), ("--latency 50ms", "--latency"), ("--queue 4", "--queue")],
)
def test_vllm_is_given_nothing_that_it_would_not_heed(words: str, named: str) -> None:
    done = CliRunner().invoke(serve.command, ["--llm", "m", "--engine", "vllm", *words.split()])
    assert isinstance(done.exception, CallerMistake)
    assert done.exception.received == f"{named} has no meaning beside --engine vllm"


@pytest.mark.parametrize(("token", "warns"), [({}, True), ({"FLATOUT_SERVE_TOKEN": "x"}, False)])
def test_vllm_for_everybody_is_warned_of(tmp_path: Path, token: dict[str, str], warns: bool) -> None:
    words = ["--llm", str(tmp_path), "--engine", "vllm", "--host", "0.0.0.0", "--gpu", "l4", "--dry-run"]
    done = CliRunner(env={"VLLM_API_KEY": None, **token}).invoke(serve.command, words)
    assert ("anybody who reaches 0.0.0.0 may use this server" in done.output) == warns


@pytest.mark.parametrize("words", ["--rdzv-endpoint a:29500", "--node-rank 1"])
def test_where_machines_meet_is_refused_without_ranks(words: str) -> None:
    done = CliRunner().invoke(run.command, [*words.split(), "train.py"])
    assert isinstance(done.exception, CallerMistake)
    assert done.exception.received == f"{words.split(maxsplit=1)[0]} without ranks"


def test_the_newest_job_has_a_cost_also_beside_a_damaged_run(tmp_path: Path) -> None:
    root = tmp_path / ".flatout"
    newest = RunFolder.create(root, command="run", arguments=("run", "train.py"))
    for name in ("20200101-000000-run-aaaaaa", "29990101-000000-run-aaaaaa"):
        (root / "runs" / name).mkdir()
        (root / "runs" / name / "run.json").write_text("{")
    done = CliRunner().invoke(cost.command, ["--folder", str(root), "--json"])
    assert done.exit_code == 0, done.exception
    assert newest.manifest.id in done.stdout
    assert "29990101-000000-run-aaaaaa" in done.stderr
    assert "20200101" not in done.stderr, "what is older is not even opened"


def test_commands_to_paste_survive_spaces() -> None:
    here = Here(machine=MachineHere(torch="2", python="/my envs/bin/python"), model="my model.pt")
    assert "flatout fit --load 'my model.pt'" in [one.command for one in suggestions(here)]
    assert here.command("run", "train.py") == "flatout run --python '/my envs/bin/python' train.py"


def test_tools_that_run_a_script_do_not_say_that_they_only_read() -> None:
    by_name = {tool.name: tool for tool in TOOLS}
    runs = {name for name, tool in by_name.items() if tool.runs_a_script}
    assert runs == {"check", "profile", "tune", "fit", "batch", "run"}
    assert not any(by_name[name].reads_only for name in runs)
    assert by_name["doctor"].reads_only


def test_a_plan_as_a_document_has_its_patch(tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        Path("train.py").write_text("import torch\n")
        Plan(
            job=Fingerprint(script="train.py", script_sha256=""),
            levers=(Choice(id="tf32"), Choice(id="from-the-future")),
        ).write(Path("flatout.toml"))
        done = CliRunner().invoke(patch.command, ["--json"])
        shown = CliRunner().invoke(patch.command, ["--quiet"])
    document = json.loads(done.stdout)
    assert document["schema"] == "flatout.patch/1"
    assert (document["plan"], document["script"], document["levers"]) == (
        "flatout.toml",
        "train.py",
        ["tf32"],
    )
    assert document["dropped"][0].startswith("dropped from-the-future")
    assert document["patch"] == shown.stdout != ""


@pytest.mark.parametrize("words", ["5m", "0", "300"])
def test_stop_takes_times_as_other_commands_do(words: str) -> None:
    assert Duration(or_none=True).convert(words, None, None) == {"5m": 300.0, "0": 0.0, "300": 300.0}[words]
