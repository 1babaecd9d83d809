"""What the project says that it is for, row by row, exists: pages, commands, Python, tests and results."""

import ast
import re

import flatout
from tests.papers import ROOT, links, mentions, parsed_by_click, words_of

MISSION = (ROOT / "docs/mission.md").read_text("utf-8")
ROWS = {
    cells[0]: cells[1:]
    for line in MISSION.splitlines()
    if len(cells := [cell.strip() for cell in line.strip("|").split(" | ")]) == 5
    and re.match(r"M\d", cells[0])
}
SYMPTOMS = (
    *("Out of memory", "Training is slow", "Memory grows", "The GPU is hardly used", "Results differ"),
    *("It does not start", "Ranks hang"),
)


def test_every_row_is_there_once_and_in_order() -> None:
    assert re.findall(r"^\| (M\d\d) ", MISSION, re.MULTILINE) == [f"M{number:02}" for number in range(1, 52)]
    assert len(ROWS) == 51


def test_every_row_has_a_page_something_to_type_and_a_test() -> None:
    for name, (_, read, typed, shown) in ROWS.items():
        assert any(link.partition("#")[0].endswith(".md") for link in links(read)), name
        assert re.search(r"`(sudo )?flatout[ .]", typed), name
        assert "](../tests/" in shown, name


def test_what_a_row_says_to_type_can_be_typed() -> None:
    for name, (_, _, typed, _) in ROWS.items():
        for line in mentions(typed):
            parsed_by_click(words_of(line))
        for code in re.findall(r"`(flatout\.[^`]+)`", typed):
            called = ast.parse(code, mode="eval").body
            assert isinstance(called, ast.Call), name
            assert isinstance(called.func, ast.Attribute), name
            assert called.func.attr in flatout.__all__, f"{name}: {code}"


def test_the_tests_of_a_row_are_in_their_files() -> None:
    named = [
        found for row in ROWS.values() for found in re.findall(r"\[([^\]]+)\]\(\.\./(tests/[^)]+)\)", row[3])
    ]
    assert len(named) > 100
    for words, file in named:
        test = f"test_{words.replace(' ', '_')}"
        assert f"def {test}(" in (ROOT / file).read_text("utf-8"), f"{file} has no {test}"


def test_what_was_measured_is_a_file_of_results() -> None:
    for name, row in ROWS.items():
        for target in re.findall(r"measured: \[[^\]]+\]\(([^)]+)\)", row[3]):
            assert target.startswith("../benchmarks/results/"), name
            assert (ROOT / "docs" / target).is_file(), f"{name}: {target}"


def test_troubleshooting_leads_from_each_symptom_to_a_command() -> None:
    text = (ROOT / "docs/troubleshooting.md").read_text("utf-8")
    parts = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    for symptom in SYMPTOMS:
        body = next((body for head, body in parts.items() if head.startswith(symptom)), "")
        assert re.search(r"^(    |```bash\n|)flatout ", body, re.MULTILINE), symptom
        assert "| what you see |" in body.lower(), symptom
