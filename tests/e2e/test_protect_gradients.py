"""`flatout run --protect`: gradients that wait, and passes backward that are compiled on the way back."""

from pathlib import Path

import pytest

from tests.e2e.conftest import Run
from tests.e2e.test_protect import DIES, bare, lives

TWO_OPTIMIZERS = (
    DIES
    + """
import time
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
first = torch.optim.SGD(model[0].parameters(), lr=0.05, momentum=0.9)
second = torch.optim.AdamW(model[2].parameters(), lr=1e-2)
for number in range(12):
    x = torch.randn(16, 8)
    first.zero_grad(); second.zero_grad()
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    first.step(); second.step()
    time.sleep(0.5 if number in (2, 3) else 0)  # by then it is saved
    print(number, repr(loss.item()), repr(sum(p.abs().sum().item() for p in model.parameters())), flush=True)
    die_at(str(number))
"""
)
COMPILED = (
    DIES
    + """
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
model.compile()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for number in range(10):
    x = torch.randn(16, 8)
    optimizer.zero_grad()
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    gradient = sum(p.grad.abs().sum().item() for p in model.parameters())
    optimizer.step()
    print(number, repr(loss.item()), repr(gradient), flush=True)
    die_at(str(number))
"""
)


def test_what_another_optimizer_steps_on_next_is_what_it_was(flatout: Run, tmp_path: Path) -> None:
    """The fifth update is the first optimizer's: between it and the sixth, gradients wait."""
    (tmp_path / "train.py").write_text(TWO_OPTIMIZERS)
    expected = bare(tmp_path)
    (_, _), (last, told) = lives(flatout, tmp_path, "3@9", every="5")
    assert "goes on after update 5" in told
    assert last == expected[expected.index(last[0]) :]
    assert last[-1] == expected[-1]
    assert "come out the same" in told


@pytest.mark.full
def test_code_that_is_compiled_on_the_way_back_has_its_gradients(
    flatout: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a cache of its own in each life, as on another machine."""
    (tmp_path / "train.py").write_text(COMPILED)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    expected = bare(tmp_path)
    run = ("run", "--protect", "--no-rehearsal", "--save-every", "3", "train.py")
    flatout(*run, LIFE="5@9", TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "first"))
    done = flatout(*run, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "second"))
    assert done.returncode == 0, done.stderr
    for found in (done.stdout.splitlines(), bare(tmp_path, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "second"))):
        wanted = expected[-len(found) :]
        for one, other in zip(found, wanted, strict=True):
            assert [float(word) for word in one.split()] == pytest.approx(
                [float(word) for word in other.split()], rel=1e-4
            )
