"""The skills: in the format's limits, complete, and naming nothing that does not exist."""

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml

from flatout.cli.commands import COMMANDS
from flatout.diagnose.catalogue import BY_CODE
from flatout.hardware.catalogue import catalogue
from flatout.levers.catalogue import LEVERS
from tests.papers import parsed_by_click
from tests.skill_commands import SKILLS, command_lines, words_of

NAMES = ["gpu-optimization", "memory-management"]
# The format's own limits.
NAME_AT_MOST, DESCRIPTION_AT_MOST, COMPATIBILITY_AT_MOST = 64, 1024, 500
FIELDS = {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
BODY_LINES_AT_MOST = 500
# About four characters a token, and 5,000 tokens recommended.
BODY_CHARACTERS_AT_MOST = 20_000


def _parts(name: str) -> tuple[dict[str, object], str]:
    text = (SKILLS / name / "SKILL.md").read_text(encoding="utf-8")
    empty, head, body = text.split("---\n", 2)
    assert empty == ""
    return yaml.safe_load(head), body


def test_there_are_these_skills() -> None:
    assert sorted(path.parent.name for path in SKILLS.glob("*/SKILL.md")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_skill_keeps_to_the_format(name: str) -> None:
    head, body = _parts(name)
    assert set(head) <= FIELDS
    assert head["name"] == name
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
    assert len(name) <= NAME_AT_MOST
    assert 0 < len(str(head["description"])) <= DESCRIPTION_AT_MOST
    assert "Use it " in str(head["description"])
    assert not re.search(r"[<>]", str(head["description"]))
    assert len(str(head["compatibility"])) <= COMPATIBILITY_AT_MOST
    assert len(body.splitlines()) < BODY_LINES_AT_MOST
    assert len(body) < BODY_CHARACTERS_AT_MOST


@pytest.mark.parametrize("name", NAMES)
def test_a_skill_has_fifteen_uses_each_with_commands_and_words(name: str) -> None:
    _, body = _parts(name)
    uses = re.findall(r"^### (\d+)\. [^\n]+\n(.*?)(?=^##|\Z)", body, re.MULTILINE | re.DOTALL)
    assert [int(number) for number, _ in uses] == list(range(1, 16))
    for number, text in uses:
        assert "```bash\nflatout " in text, number
        assert len(re.sub(r"```.*?```", "", text, flags=re.DOTALL).split()) > 15, number


@pytest.mark.parametrize("name", NAMES)
def test_what_a_skill_points_to_lies_in_it(name: str) -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in (SKILLS / name).rglob("*.md"))
    pointed = {*re.findall(r"\]\((references/[^)]+)\)", text), *re.findall(r"`(scripts/\S+\.py)", text)}
    files = {
        str(path.relative_to(SKILLS / name))
        for folder in ("references", "scripts")
        for path in (SKILLS / name / folder).iterdir()
        if path.is_file()
    }
    assert pointed == files


@pytest.mark.parametrize("line", command_lines())
def test_every_command_line_of_the_skills_parses(line: str) -> None:
    words = words_of(line)
    if len(words) == 1:  # the name of a command in a sentence
        assert words[0] in COMMANDS
    else:
        parsed_by_click(words)


@pytest.mark.parametrize(
    "line", ["flatout profile --no-such train.py", "flatout fit --max-memory much train.py", "flatout frob x"]
)
def test_a_wrong_command_line_would_be_noticed(line: str) -> None:
    with pytest.raises((click.UsageError, AssertionError)):
        parsed_by_click(words_of(line))


def test_levers_findings_and_gpus_in_the_skills_exist() -> None:
    levers = {lever.id for lever in LEVERS}
    gpus = {gpu.id for gpu in catalogue()}
    for line in command_lines():
        words = words_of(line)
        given = dict(itertools.pairwise(words))
        for option in ("--only", "--skip", "--allow"):
            assert set(given.get(option, "").split(",")) - {""} <= levers, line
        if words[0] == "fit":
            assert set(given.get("--gpu", "").split(",")) - {""} <= gpus, line
    text = "".join(page.read_text(encoding="utf-8") for page in SKILLS.rglob("*.md"))
    assert set(re.findall(r"\bF\d{3}\b", text)) <= set(BY_CODE)


PROFILE = {"schema": "flatout.profile/1", "waterfall": [{"part": "matmul", "ms": 3.0}]}
FIT = {
    "schema": "flatout.fit/1",
    "options": [
        {"gpu": "large", "fits": True, "peak_bytes": 2 << 30, "usd_per_hour": 3.0},
        {"gpu": "small", "fits": False, "peak_bytes": 2 << 30, "usd_per_hour": 0.4},
    ],
    "strategies": [
        {
            "gpu": "small",
            "fits": True,
            "peak_bytes": 1 << 30,
            "usd_per_hour": 0.4,
            "predicted_slowdown": 1.5,
            "strategy": "bf16",
            "changes_training": False,
        }
    ],
}


def _script(name: str, *files: Path) -> "subprocess.CompletedProcess[str]":
    [script] = SKILLS.glob(f"*/scripts/{name}")
    return subprocess.run([sys.executable, script, *files], capture_output=True, text=True, timeout=30)


def test_profiles_are_compared(tmp_path: Path) -> None:
    files = []
    for name, middle in (("before", 10.0), ("after", 5.0)):
        step = {"p50": middle, "low": middle - 0.1, "high": middle + 0.1}
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps({**PROFILE, "step_ms": step}))
    done = _script("compare_profiles.py", *files)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "step 10.00 -> 5.00 ms, 2.00x")
    assert "do not overlap" in done.stdout
    assert "intervals overlap" in _script("compare_profiles.py", files[0], files[0]).stdout
    assert _script("compare_profiles.py", files[0]).returncode == 2


def test_the_cheapest_fit_comes_first(tmp_path: Path) -> None:
    (tmp_path / "fit.json").write_text(json.dumps(FIT))
    done = _script("cheapest_fit.py", tmp_path / "fit.json")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["small", "large"]
    assert "0.60 USD" in done.stdout
