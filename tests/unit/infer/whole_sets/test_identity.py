"""Outputs of one model and one data set, and of no other, lie in a folder."""

import functools
import json
import subprocess
import sys
import threading
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import flatout
from flatout.infer.whole_sets.checksums import checksum
from flatout.infer.whole_sets.identity import differing, fingerprint, identity
from flatout.records.errors import CallerMistake

DATA = torch.arange(40.0).view(20, 2)
FACTOR = 2.0


def run(module: Any, out: Path, dataset: Any = DATA, **more: Any) -> Any:
    return flatout.batch_inference(module, dataset, out=out, batch_size=4, **more)


class Net(nn.Module):
    """A setting that no weight and no repr shows."""

    def __init__(self, heat: Any = 1.0) -> None:
        super().__init__()
        self.heat = heat
        self.inner = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.inner(x) / self.heat
        return found


class Other(Net):
    """The same, but for what it does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.inner(x) * self.heat
        return found


def alike(module: nn.Module, other: nn.Module) -> nn.Module:
    other.load_state_dict(module.state_dict())
    return other


def test_another_function_is_refused(tmp_path: Path) -> None:
    run(lambda x: x * 2, tmp_path)
    with pytest.raises(CallerMistake, match=r"another model \(its code\)"):
        run(lambda x: x * 1000, tmp_path)
    assert run(lambda x: x * 2, tmp_path).computed == 0


def times(factor: Any) -> Any:
    return lambda x: x * factor


def scaled(x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
    return x * by


def by_global(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR


class Called:
    """Is no module, and can be called."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor

    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.factor


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (times(2), times(3)),
        (times(torch.tensor(2.0)), times(torch.tensor(3.0))),
        (functools.partial(scaled, by=2), functools.partial(scaled, by=3)),
        (Called(2), Called(3)),
        (Called(2).method, Called(3).method),
        (times({1, 2}), times({1, 3})),
        (lambda x: x.sin(), lambda x: x.cos()),
        (lambda x: [y * 2 for y in x], lambda x: [y * 3 for y in x]),
        (lambda x, y=1: x + y, lambda x, y=2: x + y),
    ],
)
def test_functions_differ_by_what_they_do_and_what_they_refer_to(one: Any, other: Any) -> None:
    assert fingerprint(one) == fingerprint(one)
    assert fingerprint(one) != fingerprint(other)


def test_functions_refer_to_models_and_settings_outside_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    net, before = Net(), fingerprint(by_global)
    around = fingerprint(lambda x: net(x) + 1)
    with torch.no_grad():
        net.inner.weight[0, 0] += 1
    assert fingerprint(lambda x: net(x) + 1) != around
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert fingerprint(by_global) != before


def test_a_function_that_nobody_can_compare_is_told_and_not_taken_up(tmp_path: Path) -> None:
    lock = threading.Lock()

    def locked(x: torch.Tensor) -> torch.Tensor:
        with lock:
            return x

    with pytest.warns(UserWarning, match="refers to lock"):
        run(locked, tmp_path)
    with pytest.warns(UserWarning, match="lock"), pytest.raises(CallerMistake, match="be compared"):
        run(locked, tmp_path)


@pytest.mark.parametrize(
    ("other", "what"),
    [(lambda net: alike(net, Net(5.0)), "settings"), (lambda net: alike(net, Other()), "code")],
)
def test_equal_weights_are_not_the_same_model(tmp_path: Path, other: Any, what: str) -> None:
    net = Net()
    run(net, tmp_path)
    with pytest.raises(CallerMistake, match=what):
        run(other(net), tmp_path)
    assert run(alike(net, Net()), tmp_path).computed == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 2], [1, 3]),
        ({"a": 1}, {"a": 2}),
        (types.SimpleNamespace(scale=1), types.SimpleNamespace(scale=2)),
        (torch.ones(2), torch.zeros(2)),
        (scaled, by_global),
        (Called(1), Called(2)),
    ],
)
def test_settings_are_seen_in_what_a_module_holds(one: Any, other: Any) -> None:
    net = Net(one)
    assert fingerprint(net) != fingerprint(alike(net, Net(other)))


def test_what_a_module_holds_beside_its_settings_does_not_end_resuming(tmp_path: Path) -> None:
    net = Net()
    net.lock = threading.Lock()  # type: ignore[assignment]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(net, tmp_path)
    net.lock = threading.Lock()  # type: ignore[assignment]
    assert run(net, tmp_path).computed == 0


def test_every_number_counts() -> None:
    module = nn.Linear(512, 512)
    other = alike(module, nn.Linear(512, 512))
    before = fingerprint(module)
    assert fingerprint(other) == before
    with torch.no_grad():
        other.weight[300, 77] += 1e-3
        assert fingerprint(other) != before
        other.weight.copy_(module.weight)
        other.weight[[3, 259]] = other.weight[[259, 3]]
    assert fingerprint(other) != before


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.bfloat16, torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn],
)
@pytest.mark.parametrize("count", [0, 1, 3, 70_001])
def test_checksums_of_all_kinds_of_numbers(dtype: torch.dtype, count: int) -> None:
    zeros = torch.zeros(count, dtype=dtype)
    assert checksum(zeros) == checksum(torch.zeros(2 * count, dtype=dtype)[::2])
    assert checksum(zeros) != checksum(torch.zeros(count + 1, dtype=dtype))
    if count:
        ones = torch.zeros(count)
        ones[-1] = 1
        assert checksum(zeros) != checksum(ones.to(dtype))


def test_numbers_that_change_places_are_other_numbers() -> None:
    one, two = torch.zeros(2048), torch.zeros(2048)
    one[0], one[512] = 1, 2
    two[0], two[512] = 2, 1
    assert checksum(one) != checksum(two)
    assert checksum(one) == checksum(torch.cat([torch.zeros(1), one])[1:]), "wherever they lie in memory"
    assert checksum(one.to_sparse()) == checksum(one)


def test_other_data_of_the_same_length_are_refused(tmp_path: Path) -> None:
    net = Net()
    run(net, tmp_path)
    with pytest.raises(CallerMistake, match="another data set"):
        run(net, tmp_path, DATA + 100)
    assert run(net, tmp_path, DATA.clone()).computed == 0


def test_other_inputs_are_refused(tmp_path: Path) -> None:
    net = Net()
    run(net, tmp_path, inputs=lambda batch: batch + 1)
    with pytest.raises(CallerMistake, match="another inputs or collate_fn"):
        run(net, tmp_path, inputs=lambda batch: batch + 2)


class Noisy(Dataset[torch.Tensor]):
    """Its first sample is never the same, and its last one cannot always be read."""

    def __init__(self) -> None:
        self.is_broken = True

    def __len__(self) -> int:
        return len(DATA)

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == len(DATA) - 1 and self.is_broken:
            raise OSError("broken picture")
        return DATA[index] + torch.rand(2) if index == 0 else DATA[index]


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_that_vary_or_cannot_be_read_are_not_compared(tmp_path: Path, workers: int) -> None:
    data, net = Noisy(), Net()
    with pytest.raises(OSError, match="broken picture"):
        run(net, tmp_path, data, workers=workers, shard_samples=4)
    data.is_broken = False
    again = run(net, tmp_path, data, workers=workers, shard_samples=4)
    assert again.samples == len(DATA)
    assert 0 < again.computed < len(DATA)


def test_what_can_only_be_iterated_over_is_left_alone() -> None:
    class Once(IterableDataset[torch.Tensor]):
        def __iter__(self) -> Any:
            raise AssertionError

    assert identity(Net(), (), Once(), None, 0).endswith("data=-")


def test_a_folder_of_an_earlier_version_is_refused_in_clear_words(tmp_path: Path) -> None:
    net = Net()
    run(net, tmp_path)
    path = tmp_path / "index.json"
    index = json.loads(path.read_text())
    index["made"]["model"] = "0" * 32
    path.write_text(json.dumps(index))
    with pytest.raises(CallerMistake, match="another version of Flatout, which did not look"):
        run(net, tmp_path)


def test_a_loader_is_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(CallerMistake, match="DataLoader") as caught:
        run(Net(), tmp_path, DataLoader(DATA, batch_size=4))  # type: ignore[arg-type]
    assert "loader.dataset" in caught.value.remedy


def test_a_wrapped_module_is_the_module() -> None:
    net = Net().eval()
    fast = flatout.optimize(net, DATA[:4], budget_s=0.1)
    assert fingerprint(fast) == fingerprint(net) == fingerprint(nn.DataParallel(net))


JOB = """
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel
from flatout.infer.whole_sets.identity import identity
torch.manual_seed(0)
WORDS = {"one", "two", "three"}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.act, self.own = set(WORDS), nn.functional.gelu, self.used
        self.inner = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=9, n_positions=8))
    def used(self, x):
        return x in {"a", "b", "c"} or x in WORDS
print(identity(Net(), (lambda batch: batch[0] if batch[1] in WORDS else None,), torch.ones(5, 2), 5, 0))
print(identity(lambda x: Net().used(x), (), [("a", 1)], 1, 0))
"""


def test_in_another_process_all_is_the_same() -> None:
    said = {
        subprocess.run(
            [sys.executable, "-c", JOB],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1, said
    assert "?" not in said.pop()


def test_words_name_what_differs() -> None:
    before = "code=a settings=b weights=c inputs=d data=1.-.3.4"
    assert differing(before, "code=a settings=b weights=c inputs=d data=1.2.-.4") == []
    assert differing(before, "code=a settings=x weights=y inputs=d data=1.2.3.5") == [
        "model (its settings)",
        "model (its weights)",
        "data set (its samples)",
    ]
