"""`flatout skills`: what is listed, what is copied, what is left alone; and the skills' own commands, run."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flatout.cli.commands import COMMANDS
from tests.e2e.conftest import Run
from tests.e2e.jobs import QUICK, Place, place_in
from tests.skill_commands import SKILLS, command_lines, words_of


def test_both_skills_are_listed_with_what_they_are_for(flatout: Run) -> None:
    found = json.loads(flatout("skills", "--json").stdout)
    assert [one["name"] for one in found["skills"]] == ["gpu-optimization", "memory-management"]
    assert all((Path(one["path"]) / "SKILL.md").is_file() for one in found["skills"])
    shown = flatout("skills")
    assert shown.returncode == 0
    assert "Use it " in shown.stdout


def test_skills_are_copied_and_files_that_somebody_changed_are_left(flatout: Run, tmp_path: Path) -> None:
    done = flatout("skills", "install", "--to", "here")
    assert done.stdout.split() == ["here/gpu-optimization", "here/memory-management"]
    sources = {path.relative_to(SKILLS) for path in SKILLS.glob("*/**/*") if path.is_file()}
    copied = {
        path.relative_to(tmp_path / "here") for path in (tmp_path / "here").rglob("*") if path.is_file()
    }
    assert copied == {path for path in sources if "__pycache__" not in path.parts}
    assert all((tmp_path / "here" / path).read_bytes() == (SKILLS / path).read_bytes() for path in copied)
    assert flatout("skills", "install", "--to", "here").returncode == 0  # the same again is no conflict

    mine = tmp_path / "here/gpu-optimization/SKILL.md"
    mine.write_text("my own")
    missing = tmp_path / "here/memory-management/SKILL.md"
    missing.unlink()
    refused = flatout("skills", "install", "--to", "here", "--json")
    assert refused.returncode == 2
    assert "gpu-optimization/SKILL.md" in json.loads(refused.stdout)["error"]["received"]
    assert mine.read_text() == "my own"
    assert not missing.exists()
    assert flatout("skills", "install", "--to", "here", "--force").returncode == 0
    assert mine.read_text() != "my own"


def test_a_folder_that_cannot_be_written_is_said(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = flatout("skills", "install", "--to", "file/below")
    assert done.returncode in (2, 3)
    assert "file/below" in done.stderr


@pytest.mark.full
def test_the_wheel_has_the_skills_in_it(tmp_path: Path) -> None:
    root = SKILLS.parent
    words = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", tmp_path, root]
    subprocess.run(words, check=True, timeout=250)
    [wheel] = tmp_path.glob("*.whl")
    subprocess.run(
        [sys.executable, "-m", "zipfile", "-e", wheel, tmp_path / "unpacked"], check=True, timeout=60
    )
    done = subprocess.run(
        [sys.executable, "-c", "from flatout.cli.main import main; main(['skills', '--json'])"],
        cwd=tmp_path / "unpacked",
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(tmp_path / "unpacked")},
        timeout=60,
    )
    paths = [one["path"] for one in json.loads(done.stdout)["skills"]]
    assert len(paths) == 2
    assert all(str(tmp_path / "unpacked") in path for path in paths)


JOB = (
    QUICK.replace("torch.randn(8, 4)", "torch.randn(size, 4)").replace(
        "torch.manual_seed(7)",
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--batch-size', type=int, default=8)\nparser.add_argument('--lr')\n"
        "size = parser.parse_args().batch_size\ntorch.manual_seed(7)",
    )
    + "for _ in range(60): update()\n"
)
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "vocab_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
# By the command, the exit codes that are no fault of the skill: no GPU, no orphan, no plan yet.
QUICKLY: dict[str, tuple[int, ...]] = {
    "explain": (0,),
    "gpus": (0,),
    "patch": (2,),
    "power": (0, 3),
    "ps": (0,),
    "stop": (0, 2),
    "watch": (0,),
}
SLOWLY: dict[str, tuple[int, ...]] = {
    "batch": (0,),
    "check": (0, 1),
    "cost": (0,),
    "doctor": (0, 1),
    "export": (0,),
    "fit": (0,),
    "launch": (0,),
    "limits": (0,),
    "profile": (0,),
    "report": (0,),
    "run": (0,),
}
# What needs a second process, another machine's service, a trace that somebody has, or Nsight; and what takes
# long and has tests of its own.
NOT_HERE = (
    "torchrun",
    "trace.json",
    "--nsys",
    "--guard",
    "--measure",
    "--slowdown",
    "--nproc-per-node",
    "--loader",
    "--stacks",
)


def _lines(commands: dict[str, tuple[int, ...]]) -> list[str]:
    return [
        line
        for line in command_lines()
        if words_of(line)[0] in commands
        and words_of(line)[0] in COMMANDS
        and not any(word in line for word in NOT_HERE)
        and not _is_a_name_in_a_sentence(line)
    ]


def _with_new_options(lines: list[str]) -> list[str]:
    """Of lines that differ in nothing but values, or in what others show already, the first."""
    seen: set[tuple[str, str]] = set()
    kept = []
    for line in lines:
        name, *rest = words_of(line)
        shown = {(name, word) for word in ("", *rest) if not word or word.startswith("--")}
        if shown - seen:
            kept.append(line)
        seen |= shown
    return kept


def _is_a_name_in_a_sentence(line: str) -> bool:
    return line in ("flatout run", "flatout profile", "flatout fit", "flatout batch", "flatout export")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One folder with a small job for all lines, one after the other."""
    with place_in(tmp_path_factory.mktemp("skills")) as place:
        place.script(JOB)
        place.script(QUICK + "model.eval()\nfor _ in range(60): model(torch.randn(8, 4))\n", "predict.py")
        (place.work / "llama").mkdir()
        (place.work / "llama" / "config.json").write_text(json.dumps(CONFIG))
        header = json.dumps({"w": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}}).encode()
        file = len(header).to_bytes(8, "little") + header + bytes(64)
        (place.work / "model.safetensors").write_bytes(file)
        save = "import torch; torch.save({'w': torch.zeros(4)}, 'pytorch_model.bin')"
        place.bare("-c", save)
        yield place


def _run(place: Place, line: str, fine: tuple[int, ...]) -> None:
    words = [sys.executable, "-m", "flatout", *words_of(line)]
    done = subprocess.run(
        words, capture_output=True, text=True, cwd=place.work, env=place.environment(), timeout=250
    )
    assert done.returncode in fine, (line, done.stderr[-2000:])
    if "--json" in line and done.returncode < 2:
        assert json.loads(done.stdout)["schema"].startswith("flatout.")


@pytest.mark.parametrize("line", _lines(QUICKLY))
def test_quick_commands_of_the_skills_run(shared: Place, line: str) -> None:
    _run(shared, line, QUICKLY[words_of(line)[0]])


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_other_commands_of_the_skills_run_on_a_small_job(shared: Place) -> None:
    """In an order in which each finds what it reads: jobs before their costs and reports."""
    later = ("cost", "report")
    lines = sorted(_with_new_options(_lines(SLOWLY)), key=lambda line: words_of(line)[0] in later)
    assert {words_of(line)[0] for line in lines} == set(SLOWLY)
    for line in lines:
        _run(shared, line, SLOWLY[words_of(line)[0]])
