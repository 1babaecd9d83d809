"""The newest complete checkpoint of each library, and of what was left half written, none."""

import json
import os
import struct
import zipfile
from pathlib import Path

import pytest

from flatout.integrations import accelerate, hugging_face, lightning
from flatout.integrations.accelerate import checkpoints
from flatout.integrations.hugging_face.checkpoints import damage_in


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data.pkl", bytes(500))


def of_trainer(folder: Path, step: int) -> Path:
    place = folder / f"checkpoint-{step}"
    place.mkdir(parents=True)
    header = json.dumps({"weight": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    (place / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        zipped(place / name)
    (place / "trainer_state.json").write_text("{}")
    return place


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def test_a_trainer_goes_on_from_the_highest_number(tmp_path: Path) -> None:
    assert hugging_face.newest_checkpoint(tmp_path / "none") is None
    for step in (900, 1000, 20):
        of_trainer(tmp_path, step)
    (tmp_path / "checkpoint-best").mkdir()
    assert hugging_face.newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-1000")


@pytest.mark.parametrize(
    ("file", "word"),
    [
        ("model.safetensors", "model.safetensors is cut off"),
        ("optimizer.pt", "optimizer.pt is cut off"),
        ("rng_state.pth", "rng_state.pth is cut off"),
        ("trainer_state.json", "trainer_state.json is not there, or not whole"),
    ],
)
def test_a_file_that_was_cut_off_spoils_it(file: str, word: str, tmp_path: Path) -> None:
    of_trainer(tmp_path, 10)
    newer = of_trainer(tmp_path, 20)
    (newer / "trainer_state.json").write_text('{"step": 20}')
    cut(newer / file)
    assert damage_in(newer) == word
    assert hugging_face.newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")


def test_a_model_without_its_optimizer_is_no_place_to_go_on_from(tmp_path: Path) -> None:
    place = of_trainer(tmp_path, 10)
    (place / "optimizer.pt").unlink()
    assert hugging_face.newest_checkpoint(tmp_path) is None


def test_lightning_goes_on_from_the_youngest_file_that_is_whole(tmp_path: Path) -> None:
    assert lightning.newest_checkpoint(tmp_path) is None
    (tmp_path / "below").mkdir()
    for age, name in ((3, "old.ckpt"), (2, "below/right.ckpt"), (1, "cut.ckpt")):
        zipped(tmp_path / name)
        if name.startswith("cut"):
            cut(tmp_path / name)
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    assert lightning.newest_checkpoint(tmp_path) == str(tmp_path / "below/right.ckpt")


def test_accelerate_goes_on_from_what_has_its_name(tmp_path: Path) -> None:
    assert accelerate.newest_checkpoint(tmp_path) is None
    for name in ("step-9", "step-10", ".step-11.part", "step-x"):
        (tmp_path / name).mkdir()
    assert accelerate.newest_checkpoint(tmp_path) == tmp_path / "step-10"


class OneRank:
    """As much of an Accelerator as saving asks for."""

    is_main_process, process_index = True, 0

    def wait_for_everyone(self) -> None:
        """There is nobody else."""

    def save_state(self, folder: str) -> None:
        (Path(folder) / "model").touch()


def test_accelerate_keeps_the_one_just_saved_and_sweeps_what_a_kill_left(tmp_path: Path) -> None:
    (tmp_path / ".step-7.part").mkdir()
    for step in (10, 20):
        checkpoints.save(OneRank(), tmp_path, step, {}, keep=0)
    assert [one.name for one in tmp_path.iterdir()] == ["step-20"]
