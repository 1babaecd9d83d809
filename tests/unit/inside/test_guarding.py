"""What the guard plants and notes in the user's process."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flatout.inside.guarding import Guarding  # noqa: E402
from flatout.inside.session import Session  # noqa: E402
from flatout.records.session import Order  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("by", [2.0**-9, 2.0**-11])
def test_roundoff_that_is_planted_is_there_in_every_precision(tmp_path: Path, dtype: Any, by: float) -> None:
    session = Session(torch, Order(folder=str(tmp_path), perturb=by, perturbation=1))
    root = torch.nn.Linear(64, 64).to(dtype)
    before = root.weight.detach().clone().double()
    Guarding(session).begin(root)
    # Those next to zero have fewer digits.
    has_all_digits = before.abs() >= torch.finfo(dtype).tiny
    change = ((root.weight.detach().double() - before) / before)[has_all_digits]
    assert 0.5 * by < float(change.abs().mean()) < 2 * by
    # Up as often as down, and never further than to the next number that there is.
    assert abs(float(change.mean())) < by / 4
    assert float(change.abs().max()) < 1.01 * max(by, float(torch.finfo(dtype).eps)) + torch.finfo(dtype).eps


def test_each_optimizer_keeps_its_number(tmp_path: Path) -> None:
    session = Session(torch, Order(folder=str(tmp_path), guard_updates=2))
    guarding = Guarding(session)
    optimizers = [torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=0.1) for _ in range(2)]
    for optimizer in [*optimizers, *optimizers]:
        guarding.before_update(optimizer)
    assert [record["optimizer"] for record in guarding._records] == [0, 1, 0, 1]
