"""Where the kernel allows no overlay, writes are redirected inside the processes: the same promises."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.jobs import (
    QUICK,
    TWO_RANKS,
    WITHOUT_NAMESPACES,
    Place,
    document,
    furnish,
    insist_on_writes,
    losses_in,
    namespace_refusal,
    place_in,
    torchrun,
)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as made:
        yield made


@pytest.fixture(autouse=True)
def _namespaces_can_be_refused() -> None:
    if refusal := namespace_refusal():
        pytest.skip(f"this machine allows no namespace in which others could be refused: {refusal}")


def insist_on_redirection(trial: dict[str, object]) -> None:
    shield = trial["shield"]
    assert isinstance(shield, dict)
    assert shield["kind"] == "redirect"
    assert "the kernel refuses an overlay: unshare: No space left on device" in shield["reason"]


@pytest.mark.full
def test_a_redirected_check_leaves_every_file_as_it_was(place: Place) -> None:
    furnish(place)
    before = place.snapshot()
    done = place.flatout("check", "--steps", "2", "--json", "train.py", wrapper=WITHOUT_NAMESPACES)
    assert done.returncode == 0, done.stderr
    assert place.snapshot() == before
    for name, trial in zip(("1-check", "2-check"), document(done)["trials"], strict=True):
        insist_on_redirection(trial)
        insist_on_writes(place, place.said(name))


def test_a_redirected_profile_leaves_every_file_as_it_was_and_has_the_bare_losses(place: Place) -> None:
    furnish(place)
    before = place.snapshot()
    done = place.flatout("profile", "--no-limits", "--steps", "4", "train.py", wrapper=WITHOUT_NAMESPACES)
    assert done.returncode == 0, done.stderr
    assert place.snapshot() == before
    insist_on_writes(place, place.said())
    told = " ".join(done.stdout.split())
    assert "writes were redirected inside the script's processes (the kernel refuses an overlay" in told
    whole = json.loads((place.trial().parents[1] / "profile.json").read_text())
    insist_on_redirection(whole["trial"])
    assert whole["updates"] == 4
    assert whole["trial"]["outcome"] == "stopped"
    assert "finally ran" not in place.said()
    bare = place.bare("train.py", STEPS="4")  # last, for this one leaves nothing as it was
    Path("/tmp", f"made-{place.token}").unlink()
    assert place.snapshot() != before
    assert "finally ran" in bare.stdout
    assert [loss.hex() for loss in whole["losses"]] == losses_in(bare.stdout)
    assert len(set(losses_in(bare.stdout))) == 4


@pytest.mark.full
def test_redirected_ranks_stop_at_the_same_update(place: Place) -> None:
    place.script(TWO_RANKS)
    (place.work / "model.pt").write_text("my model")
    before = place.snapshot()
    done = place.flatout(
        *("profile", "--no-limits", "--json", "--steps", "5", *torchrun("train.py")),
        wrapper=WITHOUT_NAMESPACES,
    )
    assert done.returncode == 0, done.stderr
    whole = document(done)
    insist_on_redirection(whole["trial"])
    assert [rank["rank"] for rank in whole["ranks"]] == [0, 1]
    first, second = (rank["updates"] for rank in whole["ranks"])
    assert first == second
    assert whole["updates"] == 5
    assert "finally ran" not in place.said()
    assert place.snapshot() == before


def test_a_program_whose_writes_cannot_be_redirected_is_named(place: Place) -> None:
    place.script("import subprocess\nsubprocess.run(['true'], check=True)\n", "train.py")
    done = place.flatout("profile", "--json", "train.py", wrapper=WITHOUT_NAMESPACES)
    assert done.returncode == 4
    [notes] = place.work.glob(".flatout/runs/*/trials/*/shield.txt")
    assert "started true, whose writes could not be redirected" in notes.read_text()


LOADERS = """
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        open(f"seen-{index}", "w").close()
        return torch.ones(4)

if __name__ == "__main__":
    import os
    for method, workers in (("fork", 2), ("spawn", 1)):
        loader = torch.utils.data.DataLoader(Data(), num_workers=workers, multiprocessing_context=method)
        for number, batch in enumerate(loader):
            if method == "fork" and number == 2:
                break
            model(batch).sum().backward()
            optimizer.step()
            print(method, os.path.exists(f"seen-{number}"), flush=True)
"""


@pytest.mark.full
def test_redirected_loader_workers_hand_their_batches_over(place: Place) -> None:
    place.script(QUICK + LOADERS)
    before = place.snapshot()
    done = place.flatout(
        *("profile", "--no-limits", "--json", "--steps", "4", "train.py"), wrapper=WITHOUT_NAMESPACES
    )
    assert done.returncode == 0, done.stderr
    whole = document(done)
    insist_on_redirection(whole["trial"])
    assert whole["updates"] == 4
    said = place.said().splitlines()
    assert said[:2] == ["fork True"] * 2
    assert "spawn True" in said[2:]
    assert place.snapshot() == before
