"""Checkpoints and updates that are not finite: the last good one is kept, and gone back to."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import flatout
from flatout.runtime.checkpoint.store import checkpoints

NAN = math.nan


class Training:
    def __init__(self, folder: Path, *, every: int = 4, **settings: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.9)
        data = TensorDataset(torch.arange(200, dtype=torch.float32).view(100, 2) / 100)
        self.checkpointer = flatout.Checkpointer(
            folder,
            every=every,
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            loader=DataLoader(data, batch_size=5),
        )
        self.update = flatout.Update(
            self.model,
            self.optimizer,
            scheduler=self.scheduler,
            checkpointer=self.checkpointer,
            **{"patience": 3, **settings},
        )
        # The first number of each batch that came.
        self.seen: list[int] = []

    def run(self, steps: int, spoil: Any = lambda _training, _step: 1.0) -> None:
        loader = self.checkpointer.loader
        assert loader is not None
        batches = iter(loader)
        for step in range(1, steps + 1):
            (batch,) = next(batches)
            self.seen.append(round(batch[0, 0].item() * 100))
            scale = spoil(self, step)
            loss = self.model(batch).pow(2).mean() * scale
            loss.backward()
            self.update.step(loss)
            self.checkpointer.step(step)

    def weights(self) -> torch.Tensor:
        return torch.cat([one.detach().flatten() for one in self.model.parameters()])


def poison_at(bad_step: int) -> Any:
    def spoil(training: Training, step: int) -> float:
        if step == bad_step:  # as by an update with gradients that were finite, and far too large
            training.model[2].bias.data[0] = math.inf
        return 1.0

    return spoil


def test_so_many_in_a_row_stop_and_keep_the_last_good_checkpoint(tmp_path: Path) -> None:
    training = Training(tmp_path, every=5, on_nan="skip", patience=4)
    with pytest.raises(flatout.NotFinite) as raised:
        training.run(20, poison_at(6))
    training.checkpointer.close()
    found = raised.value.diagnosis
    assert (found.update, found.in_a_row) == (6, 4)
    assert found.values_not_finite == ("2.bias",)
    assert found.batch == "batch 6 of pass 1"
    newest = checkpoints(tmp_path)[0]
    assert newest.step == 5
    assert str(newest.path) in str(raised.value)
    again = Training(tmp_path)
    assert again.checkpointer.resume() == 5
    assert torch.isfinite(again.weights()).all()
    again.run(2)
    again.checkpointer.close()


def test_a_state_that_is_not_finite_is_never_saved_with_one_checkpoint_either(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    training = Training(tmp_path, every=1)
    training.checkpointer._keep = 1
    with pytest.raises(flatout.NotFinite):
        training.run(20, poison_at(3))
    training.checkpointer.close()
    assert [one.step for one in checkpoints(tmp_path)] == [2]
    assert (
        "step 3 is not saved: parameters or the optimizer's states are not finite" in capfd.readouterr().err
    )


def test_values_that_no_gradient_tells_of_end_it_where_they_would_be_saved(tmp_path: Path) -> None:
    training = Training(tmp_path, every=2)

    def saturate(training: Training, step: int) -> float:
        if step == 3:
            training.model[0].weight.data[0, 0] = math.inf  # its tanh is 1 for good, and its slope is 0
        return 1.0

    with pytest.raises(flatout.NotFinite) as raised:
        training.run(20, saturate)
    training.checkpointer.close()
    assert training.update.counts.skipped == 0
    assert raised.value.diagnosis.values_not_finite == ("0.weight",)
    assert "although its gradients were" in str(raised.value)
    assert [one.step for one in checkpoints(tmp_path)] == [2]


def test_a_skipped_update_alone_does_not_keep_a_good_state_from_being_saved(tmp_path: Path) -> None:
    training = Training(tmp_path, every=2)
    training.run(2, lambda _training, step: NAN if step == 2 else 1.0)
    training.checkpointer.close()
    assert training.update.counts.skipped == 1
    assert [one.step for one in checkpoints(tmp_path)] == [2]


def test_rolling_back_loads_the_last_good_checkpoint_and_goes_on_past_the_bad_batches(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    training = Training(tmp_path, on_nan="rollback")
    before = {}

    def spoil(training: Training, step: int) -> float:
        if step == 5:
            before["weights"], before["lr"] = training.weights(), training.scheduler.get_last_lr()
        if step == 9:  # loaded, and nothing was done since
            assert torch.equal(training.weights(), before["weights"])
            assert training.scheduler.get_last_lr() == before["lr"]
        return float(poison_at(6)(training, step))

    training.run(12, spoil)
    training.checkpointer.close()
    counts = training.update.counts
    assert (counts.skipped, counts.rollbacks, counts.in_a_row) == (3, 1, 0)
    assert training.seen == [10 * place for place in range(12)]  # every batch once, in order
    assert training.scheduler.last_epoch == 4 + 4
    assert torch.isfinite(training.weights()).all()
    assert "back to step 4, on with the next batch" in capfd.readouterr().err
    assert [one.step for one in checkpoints(tmp_path)] == [12, 8]


def test_rolling_back_has_an_end(tmp_path: Path) -> None:
    training = Training(tmp_path, on_nan="rollback", rollbacks=2)
    with pytest.raises(flatout.NotFinite) as raised:
        training.run(20, lambda _training, step: NAN if step > 5 else 1.0)
    training.checkpointer.close()
    assert training.update.counts.rollbacks == 2
    assert raised.value.diagnosis.update == 6 + 2 * 3
    # Bad batches leave the state good: it was saved meanwhile.
    assert "step-000000012" in str(raised.value)


def test_without_a_checkpoint_to_go_back_to_it_stops(tmp_path: Path) -> None:
    training = Training(tmp_path, on_nan="rollback")
    with pytest.raises(flatout.NotFinite):
        training.run(20, poison_at(1))
    training.checkpointer.close()
    assert training.update.counts.rollbacks == 0


def test_a_checkpoint_that_is_itself_not_finite_is_passed_over_and_given_up(tmp_path: Path) -> None:
    training = Training(tmp_path, on_nan="rollback")
    training.run(4)
    training.checkpointer.refusals.clear()
    training.model[2].bias.data[0] = NAN
    training.checkpointer.save(6)
    training.checkpointer.wait()
    assert [one.step for one in checkpoints(tmp_path)] == [6, 4]
    training.run(3)
    assert training.update.counts.rollbacks == 1
    assert torch.isfinite(training.weights()).all()
    training.checkpointer.close()
    assert [one.step for one in checkpoints(tmp_path)] == [4]
