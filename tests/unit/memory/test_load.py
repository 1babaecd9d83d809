"""What loading takes: by dtype and group, on the host and on GPUs, and how it takes less."""

import io
import json
import struct
import subprocess
import sys
import unicodedata
from pathlib import Path

import msgspec
import pytest
import torch
from rich.console import Console

from flatout.hardware.catalogue import select
from flatout.memory import load as module
from flatout.memory.load import load_files
from flatout.records.codec import document
from flatout.records.errors import CallerMistake, UnknownName
from flatout.records.load import Load
from flatout.report.load import draw_load

GIB = 1 << 30


def sparse_safetensors(path: Path, sizes: dict[str, tuple[str, int, int]]) -> Path:
    """A file as large as it says, of which only the header is on the disk."""
    header, at = {}, 0
    for name, (dtype, elements, width) in sizes.items():
        header[name] = {"dtype": dtype, "shape": [elements], "data_offsets": [at, at + elements * width]}
        at += elements * width
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    with path.open("r+b") as stream:
        stream.truncate(8 + len(text) + at)
    return path


def checkpoint(path: Path) -> Path:
    model = torch.nn.Linear(300, 400)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(1, 300)).sum().backward()
    optimizer.step()
    whole = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "ema": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "rng_state": torch.get_rng_state(),
        "epoch": 3,
    }
    torch.save(whole, path)
    return path


def drawn(load: Load, width: int = 120) -> str:
    stream = io.StringIO()
    draw_load(load, Console(file=stream, width=width))
    return stream.getvalue()


WEIGHTS = (300 * 400 + 400) * 4


def test_a_checkpoint_is_more_than_its_model(tmp_path: Path) -> None:
    load = load_files([checkpoint(tmp_path / "c.pt")], [])
    groups = {group.name: (group.role, group.stored_bytes) for group in load.groups}
    assert groups["model"] == ("model", WEIGHTS)
    assert groups["optimizer"] == ("optimizer", 2 * WEIGHTS + 8)  # and two counts of steps
    assert groups["ema"] == ("other", WEIGHTS)
    assert groups["rng_state"][0] == "other"
    assert load.weights_bytes == WEIGHTS
    assert load.bf16_bytes == WEIGHTS // 2
    assert load.parameter_count == WEIGHTS // 4
    assert load.stored_bytes > 4 * WEIGHTS
    usual, lean = load.ways
    assert usual.host_bytes == load.stored_bytes + WEIGHTS
    assert (lean.host_bytes, lean.page_bytes) == (0, load.stored_bytes)
    assert len(load.options) == 8


def test_what_is_suggested_for_a_checkpoint_is_right(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "c.pt")
    load = load_files([path], ["t4"])
    saved = [one.host_saved_bytes + one.device_saved_bytes for one in load.leaner]
    assert saved == sorted(saved, reverse=True)
    (meta,) = [one for one in load.leaner if "without memory" in one.what]
    assert meta.host_saved_bytes == WEIGHTS
    # It runs as it stands.
    names = {"torch": torch, "Model": lambda: torch.nn.Linear(300, 400)}
    exec("\n".join(meta.how), names)
    model = names["model"]
    assert isinstance(model, torch.nn.Linear)
    assert model.weight.device.type == "cpu"
    (alone,) = [one for one in load.leaner if "alone" in one.what]
    assert alone.device_saved_bytes == load.stored_bytes - WEIGHTS
    assert "state['model']" in alone.how[-1]
    assert any("mmap=True" in line for one in load.leaner for line in one.how)
    assert not any("split" in one.what for one in load.leaner)


def test_an_average_that_is_all_there_is_is_the_model(tmp_path: Path) -> None:
    torch.save({"ema": {"w": torch.zeros(5)}, "optimizer": {"m": torch.zeros(5)}}, tmp_path / "c.pt")
    assert load_files([tmp_path / "c.pt"], ["t4"]).weights_bytes == 20


def test_an_optimizer_in_a_file_of_its_own_is_left_out(tmp_path: Path) -> None:
    weights = sparse_safetensors(tmp_path / "model.safetensors", {"w": ("F32", 1000, 4)})
    model = torch.nn.Linear(10, 10)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.zeros(1, 10)).sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    load = load_files([weights, tmp_path / "optimizer.pt"], ["t4"])
    assert load.weights_bytes == 4000
    assert {group.role for group in load.groups} == {"model", "optimizer"}
    (alone,) = [one for one in load.leaner if "alone" in one.what]
    assert alone.how == (f"# leave out {tmp_path / 'optimizer.pt'}",)


def test_safetensors_take_pages_and_no_more(tmp_path: Path) -> None:
    path = sparse_safetensors(tmp_path / "m.safetensors", {"a.w": ("F32", 1 << 20, 4), "n": ("I64", 10, 8)})
    load = load_files([path], ["t4"])
    usual, lean = load.ways
    assert (usual.host_bytes, usual.page_bytes) == (load.weights_bytes, load.stored_bytes)
    assert lean.host_bytes == 0
    assert load.bf16_bytes == (2 << 20) + 80
    assert not any("mmap" in line for one in load.leaner for line in one.how)
    assert any("load_file(" in line for one in load.leaner for line in one.how)


def test_gpus_of_three_sizes(tmp_path: Path) -> None:
    # 20 GiB as stored, 10 GiB in bfloat16.
    sizes = {f"l.{i}.w": ("F32", 1 << 28, 4) for i in range(20)}
    load = load_files([sparse_safetensors(tmp_path / "m.safetensors", sizes)], ["t4", "h200-sxm"])
    small, large = load.options
    assert (small.fits_weights, small.fits_bf16) == (False, True)
    assert (large.fits_weights, large.fits_bf16) == (True, True)
    said = drawn(load)
    assert "does not fit" in said
    assert "20.0 GiB" in said


def test_too_close_to_say(tmp_path: Path) -> None:
    room = select(["t4"])[0].usable_bytes - module.CONTEXT_BYTES
    path = sparse_safetensors(tmp_path / "m.safetensors", {"w": ("BF16", room // 2, 2)})
    (option,) = load_files([path], ["t4"]).options
    assert option.fits_bf16 is None
    assert option.unknown["fits_bf16"] == "too close to say"


def test_what_fits_nowhere_is_split(tmp_path: Path) -> None:
    sizes = {f"l.{i}.w": ("BF16", 5 << 30, 2) for i in range(44)}  # 440 GiB
    load = load_files([sparse_safetensors(tmp_path / "m.safetensors", sizes)], ["h200-sxm"])
    (split,) = [one for one in load.leaner if "split" in one.what]
    assert "over 4 GPUs of h200-sxm" in split.what
    assert not any("cast" in one.what for one in load.leaner)
    assert any("float32" in note for note in load.notes)


def test_what_is_suggested_for_a_module_saved_whole_runs_and_says_what_it_trusts(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(300, 400), tmp_path / "whole.pt")
    load = load_files([tmp_path / "whole.pt"], ["t4"])
    (meta,) = [one for one in load.leaner if "without memory" in one.what]
    assert any("weights_only=False" in line and "where you trust it" in line for line in meta.how)
    names = {"torch": torch, "Model": lambda: torch.nn.Linear(300, 400)}
    exec("\n".join(meta.how), names)
    assert names["model"].weight.device.type == "cpu"  # type: ignore[attr-defined]


def test_shards_come_one_after_the_other(tmp_path: Path) -> None:
    for number in (1, 2):
        torch.save({f"l{number}.w": torch.zeros(1000 * number)}, tmp_path / f"m-0000{number}-of-00002.bin")
    load = load_files([tmp_path], ["t4"])
    assert load.ways[0].host_bytes == 12_000 + 8_000
    (meta,) = [one for one in load.leaner if "without memory" in one.what]
    names = {"torch": torch, "Path": Path, "Model": Sharded}
    exec("\n".join(meta.how), names)
    model = names["model"]
    assert isinstance(model, Sharded)
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}


class Sharded(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for number in (1, 2):
            inner = torch.nn.Module()
            inner.w = torch.nn.Parameter(torch.empty(1000 * number))
            setattr(self, f"l{number}", inner)


def test_the_host_has_too_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available_memory_bytes", lambda: 1000)
    torch.save({"w": torch.zeros(200)}, tmp_path / "m.pt")
    usual, lean = load_files([tmp_path / "m.pt"], ["t4"]).ways
    assert (usual.host_bytes, usual.fits) == (1600, False)
    assert lean.fits


def test_a_legacy_file_is_to_be_saved_again(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(200)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    load = load_files([tmp_path / "old.pt"], ["t4"])
    (again,) = [one for one in load.leaner if "once more" in one.what]
    exec("\n".join(again.how), {"torch": torch})
    new = load_files([tmp_path / "new-old.pt"], ["t4"])
    assert (load.files[0].format, new.files[0].format) == ("legacy", "torch")
    assert load.ways[1].host_bytes == 800
    assert new.ways[1].host_bytes == 0


def test_views_are_to_be_saved_as_copies(tmp_path: Path) -> None:
    torch.save({"v": torch.zeros(1000)[:10]}, tmp_path / "v.pt")
    load = load_files([tmp_path / "v.pt"], ["t4"])
    assert load.weights_bytes == 40
    (views,) = [one for one in load.leaner if "views" in one.what]
    assert views.host_saved_bytes == 3960


def test_where_it_was_saved_from(tmp_path: Path) -> None:
    content = io.BytesIO()
    torch.save({"w": torch.zeros(3)}, content)
    # The same length, so that the archive stays whole.
    (tmp_path / "m.pt").write_bytes(content.getvalue().replace(b"cpuq", b"xpuq"))
    load = load_files([tmp_path / "m.pt"], ["t4"])
    assert any("saved from xpu" in note for note in load.notes)


def test_many_groups_are_summed_up(tmp_path: Path) -> None:
    torch.save({f"part{i}.w": torch.zeros(i + 1) for i in range(40)}, tmp_path / "m.pt")
    load = load_files([tmp_path / "m.pt"], ["t4"])
    assert load.groups[-1].name == "28 others"
    assert sum(group.stored_bytes for group in load.groups) == load.stored_bytes


def test_mistakes(tmp_path: Path) -> None:
    path = sparse_safetensors(tmp_path / "m.safetensors", {"w": ("F32", 1, 4)})
    with pytest.raises(UnknownName):
        load_files([path], ["voodoo2"])
    with pytest.raises(CallerMistake):
        load_files([tmp_path / "absent.pt"], [])
    with pytest.raises(CallerMistake):
        load_files([], [])


@pytest.mark.parametrize("width", [60, 120])
def test_evil_names_are_shown_and_not_obeyed(tmp_path: Path, width: int) -> None:
    evil = "[bold]\x1b[2J\n\x07\ud800"
    torch.save(
        {f"{evil}": {f"{evil}": torch.zeros(2)}, "optimizer": {"x": torch.zeros(2)}}, tmp_path / "m.pt"
    )
    load = load_files([tmp_path / "m.pt"], [])
    said = drawn(load, width)
    assert "[bold]\\x1b" in said
    assert not [letter for letter in said if letter != "\n" and unicodedata.category(letter)[0] == "C"]
    assert msgspec.json.encode(document("load", 1, load))


def test_an_empty_model_is_drawn_too(tmp_path: Path) -> None:
    torch.save({}, tmp_path / "m.pt")
    load = load_files([tmp_path / "m.pt"], ["t4"])
    assert load.leaner == ()
    assert "0 tensors" in drawn(load)


def test_torch_is_not_imported(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "c.pt")
    code = (
        "import sys; from pathlib import Path; from flatout.memory.load import load_files; "
        f"load_files([Path({str(path)!r})], []); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
