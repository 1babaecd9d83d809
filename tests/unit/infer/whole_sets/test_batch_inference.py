"""A model over a data set: all outputs, in order, whatever happens on the way."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import flatout
from flatout.infer.whole_sets.shards import read_index
from flatout.records.errors import CallerMistake, JobFailed, LockHeld, UnknownName
from flatout.records.lock import folder_lock

SAMPLES = 50


class Counted(IterableDataset[torch.Tensor]):
    """Can only be iterated over."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(SAMPLES):
            yield torch.full((4,), float(number))


class Two(nn.Module):
    """Two outputs, one of them of another dtype."""

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"twice": 2 * x, "more": [x.sum(1).long(), x.bfloat16()]}


class Tight(nn.Module):
    """Runs out of memory with more than three samples."""

    def __init__(self, most: int = 3) -> None:
        super().__init__()
        self.most, self.sizes = most, list[int]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(x))
        if len(x) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")
        return x + 1


def numbers() -> torch.Tensor:
    return torch.arange(4 * SAMPLES, dtype=torch.float32).view(SAMPLES, 4)


def run(module: nn.Module, out: Any, dataset: Any = None, **settings: Any) -> Any:
    settings = {"batch_size": 4, "shard_samples": 12, **settings}
    return flatout.batch_inference(module, numbers() if dataset is None else dataset, out=out, **settings)


def test_all_outputs_lie_there_in_order_under_their_names(tmp_path: Path) -> None:
    done = run(Two(), tmp_path / "out")
    assert (done.samples, done.computed, done.batch_size, done.part_size) == (SAMPLES, SAMPLES, 4, None)
    assert torch.equal(done.output("twice"), 2 * numbers())
    assert torch.equal(done.output("more.0"), numbers().sum(1).long())
    assert torch.equal(done.output("more.1"), numbers().bfloat16())
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    assert index["schema"] == "flatout.outputs/1"
    assert [shard["first"] for shard in index["shards"]] == [0, 12, 24, 36, 48]
    assert index["is_complete"]


def test_safetensors_reads_the_shards(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    done = run(Two(), tmp_path / "out")
    files = sorted((tmp_path / "out").glob("part-*.safetensors"))
    assert torch.equal(torch.cat([load_file(file)["more.1"] for file in files]), done.output("more.1"))


def test_numpy_files_and_what_numpy_does_not_have(tmp_path: Path) -> None:
    done = run(nn.Identity(), tmp_path / "out", format="npy")
    assert torch.equal(done.output(), numbers())
    with pytest.raises(CallerMistake, match="bfloat16"):
        run(Two(), tmp_path / "other", format="npy")


def test_a_function_gets_the_outputs_in_order(tmp_path: Path) -> None:
    seen: list[tuple[int, torch.Tensor]] = []
    run(nn.Identity(), lambda first, outputs: seen.append((first, outputs["output"])))
    assert [first for first, _ in seen] == list(range(0, SAMPLES, 4))
    assert torch.equal(torch.cat([one for _, one in seen]), numbers())


def test_what_is_there_is_not_computed_again(tmp_path: Path) -> None:
    run(nn.Identity(), tmp_path / "out")
    again = run(nn.Identity(), tmp_path / "out")
    assert (again.samples, again.computed) == (SAMPLES, 0)


@pytest.mark.parametrize("workers", [0, 1])
def test_what_can_only_be_iterated_over_keeps_its_order_and_is_resumed(tmp_path: Path, workers: int) -> None:
    whole = run(nn.Identity(), tmp_path / "whole", Counted(), workers=workers).output()
    assert torch.equal(whole[:, 0], torch.arange(float(SAMPLES)))
    folder = tmp_path / "whole"
    spoil(folder)
    again = run(nn.Identity(), folder, Counted(), workers=workers)
    assert again.computed == SAMPLES - 24
    assert torch.equal(again.output(), whole)


def spoil(folder: Path) -> None:
    """As if it had been killed: two shards are known, the third is cut short, a fourth is unknown."""
    path = folder / "index.json"
    index = json.loads(path.read_text())
    index["shards"], index["is_complete"] = index["shards"][:3], False
    path.write_text(json.dumps(index))
    third = sorted(folder.glob("part-*"))[2]
    third.write_bytes(third.read_bytes()[:-1])
    (folder / ".part-000000000048.safetensors.abc.tmp").write_bytes(b"half")


def test_what_a_kill_left_behind_is_computed_again_and_swept(tmp_path: Path) -> None:
    whole = run(Two(), tmp_path / "out").output("twice")
    spoil(tmp_path / "out")
    again = run(Two(), tmp_path / "out")
    assert again.computed == SAMPLES - 24
    assert torch.equal(again.output("twice"), whole)
    assert not list((tmp_path / "out").glob(".*tmp"))


def test_memory_that_runs_out_splits_the_batch_and_is_remembered(tmp_path: Path) -> None:
    module = Tight()
    done = run(module, tmp_path / "out", batch_size=8)
    assert torch.equal(done.output(), numbers() + 1)
    assert done.part_size == 2
    assert module.sizes[:3] == [8, 4, 2], "it ran out twice, and never again"
    assert max(module.sizes[2:]) == 2
    index = read_index(tmp_path / "out")
    assert index is not None
    assert index.part_size == 2


def test_a_single_sample_that_does_not_fit_is_an_error_and_whole_shards_stay(tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match="single sample"):
        run(Tight(0), tmp_path / "out")


def test_other_errors_come_as_they_are_and_whole_shards_stay(tmp_path: Path) -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if float(x.max()) > 150:
                raise ValueError("bad sample")
            return x

    with pytest.raises(ValueError, match="bad sample"):
        run(Fails(), tmp_path / "out")
    index = read_index(tmp_path / "out")
    assert index is not None
    assert index.samples == 36, "all shards that were whole by then"
    assert not index.is_complete


def test_a_writer_that_fails_ends_the_run() -> None:
    def full(first: int, _outputs: Any) -> None:
        if first:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        run(nn.Identity(), full)


@pytest.mark.timeout(30)
def test_a_last_shard_that_cannot_be_written_ends_the_run(tmp_path: Path) -> None:
    def full(first: int, _outputs: Any) -> None:
        if first == 48:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        run(nn.Identity(), full)

    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, : 2 if len(x) == 2 else 4]

    with pytest.raises(CallerMistake, match="other names, dtypes or shapes"):
        run(Odd(), tmp_path / "out", shard_samples=100)


def test_an_iterator_keeps_its_first_sample_where_a_batch_size_is_found(tmp_path: Path) -> None:
    done = run(nn.Identity(), tmp_path / "out", iter(Counted()), batch_size=None)
    assert torch.equal(done.output()[:, 0], torch.arange(float(SAMPLES)))
    assert run(nn.Identity(), tmp_path / "none", iter(()), batch_size=None).samples == 0


def test_a_finished_run_that_lost_a_shard_is_not_finished(tmp_path: Path) -> None:
    whole = run(nn.Identity(), tmp_path / "out", Counted()).output()
    sorted((tmp_path / "out").glob("part-*"))[2].unlink()
    again = run(nn.Identity(), tmp_path / "out", Counted())
    assert again.computed == SAMPLES - 24
    assert torch.equal(again.output(), whole)


def test_a_batch_size_is_found_and_kept(tmp_path: Path) -> None:
    done = run(nn.Linear(4, 3), tmp_path / "out", batch_size=None)
    assert 1 <= done.batch_size <= SAMPLES
    index = read_index(tmp_path / "out")
    assert index is not None
    assert index.made.batch_size == done.batch_size


def test_samples_with_labels_need_a_word(tmp_path: Path) -> None:
    data = TensorDataset(numbers(), torch.arange(SAMPLES))
    with pytest.raises(CallerMistake, match="all 2 parts"):
        run(nn.Linear(4, 3), tmp_path / "out", data)
    done = run(nn.Linear(4, 3), tmp_path / "out", data, inputs=lambda batch: batch[0])
    assert done.output().shape == (SAMPLES, 3)


def test_other_models_and_second_writers_are_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    run(nn.Linear(4, 3), tmp_path / "out")
    with pytest.raises(CallerMistake, match="another model"):
        run(nn.Linear(4, 3), tmp_path / "out")
    with pytest.raises(CallerMistake, match="batch size"):
        run(nn.Linear(4, 3), tmp_path / "out", batch_size=5)
    with folder_lock(tmp_path / "out"), pytest.raises(LockHeld):
        run(nn.Linear(4, 3), tmp_path / "out")


def test_mistakes_are_answered(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="safetensors"):
        run(nn.Identity(), tmp_path / "out", format="safetensor")
    with pytest.raises(CallerMistake, match="batch_size"):
        run(nn.Identity(), tmp_path / "out", batch_size=0)
    with pytest.raises(CallerMistake, match="no data set"):
        run(nn.Identity(), tmp_path / "out", 5)
    with pytest.raises(CallerMistake, match="entry for each"):
        run(nn.Flatten(0), tmp_path / "out")


def test_an_empty_data_set_gives_nothing(tmp_path: Path) -> None:
    class Empty(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 0

        def __getitem__(self, index: int) -> torch.Tensor:
            raise IndexError(index)

    assert run(nn.Identity(), tmp_path / "out", Empty()).samples == 0


JOB = """
import sys, time, torch, flatout
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 9))
data = torch.randn(600, 64)
class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = model
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        if len(sys.argv) > 2:  # to be killed, however late that comes
            time.sleep(600 if self.calls > int(sys.argv[2]) else 0.03)
        return self.model(x)
print("ready", flush=True)
done = flatout.batch_inference(Slow(), data, out=sys.argv[1], batch_size=7, shard_samples=21)
print(done.samples, done.computed, flush=True)
"""


def test_killed_at_any_moment_it_ends_with_the_very_same_files(tmp_path: Path) -> None:
    command = [sys.executable, "-c", JOB]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, capture_output=True, timeout=250)
    folder = tmp_path / "killed"
    for after_s in (0.2, 0.5):
        child = subprocess.Popen([*command, str(folder), "30"], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(after_s)
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        child.stdout.close()
    index = read_index(folder)
    before = index.samples if index is not None else 0
    assert before < 600
    last = subprocess.run([*command, str(folder)], check=True, capture_output=True, text=True, timeout=250)
    assert last.stdout.split()[1:] == ["600", str(600 - before)]
    names = {path.name for path in (tmp_path / "whole").glob("part-*")}
    assert {path.name for path in folder.glob("part-*")} == names
    for name in names:
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def without_odd_ones(samples: list[torch.Tensor]) -> torch.Tensor:
    """As people leave out samples that cannot be read."""
    return torch.stack([one for one in samples if float(one[0]) not in (24.0, 5.0)])


@pytest.mark.parametrize("dataset", [None, Counted()])
def test_a_collate_function_that_drops_samples_is_found_out_before_outputs_shift(
    tmp_path: Path, dataset: Any
) -> None:
    with pytest.raises(CallerMistake, match="outputs for") as caught:
        run(Two(), tmp_path / "out", dataset, collate_fn=without_odd_ones)
    assert "collate_fn" in caught.value.remedy
    # What was right until then is kept: shards of three batches each, none of them with a hole.
    index = read_index(tmp_path / "out")
    assert index is None or index.samples % 12 == 0


class Named(nn.Module):
    """Outputs whose names look alike."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {name: x + number for number, name in enumerate(self.names)} | {"a": {"b": x * 100}}


def test_numpy_files_have_names_of_their_own(tmp_path: Path) -> None:
    names = ("a_b", "a:b", "A_B", "a_b-2")
    done = run(Named(*names), tmp_path / "out", format="npy")
    for number, name in enumerate(names):
        assert torch.equal(done.output(name), numbers() + number)
    assert torch.equal(done.output("a.b"), numbers() * 100)
    files = [path.name.casefold() for path in (tmp_path / "out").glob("part-000000000000.*")]
    assert len(set(files)) == 5


def test_outputs_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CallerMistake, match="the same name"):
        run(Named("a.b"), tmp_path / "out")
