"""A data set that draws random numbers makes the same samples in workers as in the loop, if asked to."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flatout.analyze.steps import read_ranks
from flatout.inside.same_samples import drawing_by
from flatout.runtime.command import job_command
from flatout.runtime.progress import StopRule
from flatout.runtime.trial import TrialPlan, run_trial
from tests.e2e.jobs import QUICK_SGD

SCRIPT = (
    QUICK_SGD
    + """
import random
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

class Drawn(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, place):
        return torch.rand(4) + random.random() + np.random.rand() + place

model = torch.nn.Linear(4, 1)
optimizer = Sgd(model.parameters())
for _ in range(100):
    for batch in DataLoader(Drawn(), batch_size=8, shuffle=True):
        model(batch).mean().backward()
        optimizer.step()
"""
)


def inputs(tmp_path: Path, name: str, **order: Any) -> Any:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    plan = TrialPlan(
        name=name,
        command=job_command([str(script)]),
        stop=StopRule(updates=6),
        order={"seed": 5, "pair_updates": 6, **order},
    )
    trial = run_trial(plan, tmp_path / name)
    [rank] = read_ranks(Path(trial.folder))
    seen = rank.about["pairing"]["inputs"]
    assert len(seen) >= 6
    return seen[:6]


def test_workers_make_what_the_loop_would_have_made(tmp_path: Path) -> None:
    workers = {"num_workers": 2}
    in_the_loop = inputs(tmp_path, "loop", same_samples=True)
    assert inputs(tmp_path, "workers", same_samples=True, loader=workers) == in_the_loop
    assert inputs(tmp_path, "plain", loader=workers) != in_the_loop


def test_what_is_drawn_elsewhere_goes_on_as_if_nothing_had_been_drawn() -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), torch.rand(()).item(), float(np.random.rand())

    def seed() -> None:
        random.seed(1)
        torch.manual_seed(1)
        np.random.seed(1)

    seed()
    plain = draw()
    seed()
    with drawing_by(torch, 7):
        first = draw()
    assert draw() == plain
    with drawing_by(torch, 7):
        assert draw() == first
