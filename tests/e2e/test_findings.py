"""Faults planted in scripts, found with the right code and the right line."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Run

BEGIN = """
import torch
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
kept = []
def batch():
    return torch.randn(32, 64), torch.randint(8, (32,))
"""
HEALTHY = """
while True:
    x, y = batch()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
PLANTED = {
    "F506": HEALTHY.replace("    optimizer.zero_grad()\n", ""),
    "F507": HEALTHY.replace("zero_grad()", "zero_grad(set_to_none=False)"),
    # A megabyte and more with every step.
    "F505": HEALTHY + "    kept.append(torch.ones(1 << 18) * len(kept))\n",
    "F303": HEALTHY.replace("    optimizer.step()", "    optimizer.step()  # the slow one"),
}
SLOW_ADAM = BEGIN.replace(
    "torch.optim.SGD(model.parameters(), lr=1e-4)", "torch.optim.Adam(model.parameters())"
)


def found_in(flatout: Run, folder: Path, script: str) -> list[dict[str, Any]]:
    (folder / "train.py").write_text(script)
    done = flatout("profile", "--json", "--no-limits", "--steps", "400", "train.py")
    assert done.returncode == 0, done.stderr
    findings: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    return findings


# Of the others a rule's own test is enough in daily use; F505 has another one below.
DAILY = ("F506",)


@pytest.mark.parametrize(
    "code", [code if code in DAILY else pytest.param(code, marks=pytest.mark.full) for code in PLANTED]
)
def test_a_planted_fault_is_found(flatout: Run, tmp_path: Path, code: str) -> None:
    begin = SLOW_ADAM if code == "F303" else BEGIN
    findings = found_in(flatout, tmp_path, begin + PLANTED[code])
    assert code in [finding["code"] for finding in findings], findings


TRAINER = """
class Trainer:
    def __init__(self):
        self.history = {"outputs": []}
    def train(self, steps):
        for _ in range(steps):
            x, y = batch()
            output = model(x)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(output, y).backward()
            optimizer.step()
            self.history["outputs"].append(output.repeat(2048, 1))  # here
Trainer().train(300)
"""


@pytest.mark.full
@pytest.mark.parametrize(
    "code",
    [
        BEGIN + PLANTED["F505"].rstrip() + "  # here\n",
        BEGIN + TRAINER,
    ],
)
def test_who_holds_what_grows_is_named_with_the_line(flatout: Run, tmp_path: Path, code: str) -> None:
    """Of a script that goes on for ever, and of one that ends before a trial can ask it for more steps."""
    finding = next(one for one in found_in(flatout, tmp_path, code) if one["code"] == "F505")
    line = next(number for number, text in enumerate(code.splitlines(), 1) if text.endswith("# here"))
    assert (finding["where"][0]["file"], finding["where"][0]["line"]) == (str(tmp_path / "train.py"), line)
    is_in_a_class = "Trainer" in code
    assert ("Trainer.history[...]" if is_in_a_class else "kept[...]") in finding["evidence"]
    assert (".item() or .detach()" if is_in_a_class else "empty kept") in finding["fix"]


def test_a_healthy_script_has_none_of_them(flatout: Run, tmp_path: Path) -> None:
    codes = {finding["code"] for finding in found_in(flatout, tmp_path, BEGIN + HEALTHY)}
    assert not codes & {"F505", "F506", "F507", "F204", "F801"}
