"""Models made ready: loaded, proven, measured."""

import asyncio
import dataclasses
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from flatout.infer.serving.broken import lost_device
from flatout.infer.serving.collating import Runner
from flatout.infer.serving.loading import Served, load
from flatout.infer.serving.process import Events, _prepared
from flatout.infer.serving.proving import Proof, example_item, prove
from flatout.infer.serving.sizing import sized
from flatout.infer.serving.specs import checked_pads, parsed
from flatout.infer.sizes import next_length
from flatout.records.errors import CallerMistake, JobFailed
from flatout.records.packages import InputLook, PackageLook
from flatout.records.serving import ServeOrder

CPU = torch.device("cpu")


def runner(call: Any, *specs: str, **pads: float) -> Runner:
    made = tuple(map(parsed, specs))
    return Runner(Served(name="it", call=call, specs=made, device=CPU, by_name=False), pads)


class Mean(nn.Module):
    """With a mask, padding changes nothing; without one it does."""

    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.table, self.masked = nn.Embedding(10, 4), masked

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        weights = (ids > 0).float()[..., None] if self.masked else torch.ones(*ids.shape, 1)
        seen = self.table(ids) * weights
        return {"mean": seen.sum(1) / weights.sum(1).clamp_min(1), "each": seen}


def test_items_of_one_batch_get_their_own_rows() -> None:
    one = runner(lambda x: (x.sum(1), x * 2), "x:float32[3]")
    results = one([{"x": np.full(3, value, np.float32)} for value in (1, 2)])
    assert [float(result["output0"]) for result in results] == [3, 6]
    assert results[1]["output1"].tolist() == [4, 4, 4]


def test_padding_is_cut_from_the_answers_and_kept_where_they_stay_the_same() -> None:
    torch.manual_seed(0)
    one = runner(Mean(masked=True).eval(), "ids:int64[1-64]", ids=0)
    one.served.examples["ids"] = torch.randint(1, 10, (1, 64))
    assert prove(one).notes == ()
    short, long = np.arange(1, 6), np.arange(1, 8)
    assert one.key({"ids": short}) == one.key({"ids": long})
    together = one([{"ids": short}, {"ids": long}])
    alone = one([{"ids": short}])[0]
    assert together[0]["each"].shape == (5, 4)
    assert together[1]["each"].shape == (7, 4)
    assert np.allclose(together[0]["mean"], alone["mean"], atol=1e-6)


def test_padding_that_changes_answers_is_not_done() -> None:
    torch.manual_seed(0)
    one = runner(Mean(masked=False).eval(), "ids:int64[1-64]", ids=0)
    (note,) = prove(one).notes
    assert "no padding: it changes answers" in note
    assert one.key({"ids": np.arange(5)}) != one.key({"ids": np.arange(7)})


def test_a_model_that_mixes_items_is_served_one_by_one() -> None:
    mixed = runner(lambda x: x - x.mean(0), "x:float32[4]")
    proof = prove(mixed)
    assert not proof.batches
    assert "items change each other's answers" in proof.notes[0]
    assert sized(mixed, proof, most=64, latency_s=None, queue=None, wait_s=None).most == 1


def test_a_model_for_one_size_of_batch_gets_that_size() -> None:
    def only_four(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] != 4:
            raise RuntimeError("expected a batch of 4")
        return x * 2

    one = runner(only_four, "x:float32[2]")
    proof = prove(one)
    assert one.sizes == (4,)
    assert "batches of 4 alone" in proof.notes[0]
    assert [result["output"].tolist() for result in one([{"x": np.ones(2, np.float32)}] * 3)] == [[2, 2]] * 3
    assert sized(one, proof, most=64, latency_s=None, queue=None, wait_s=None).most == 4


def test_a_model_that_cannot_be_called_is_told_with_its_own_words() -> None:
    with pytest.raises(JobFailed, match="mat1 and mat2"):
        prove(runner(nn.Linear(3, 1), "x:float32[4]"))
    with pytest.raises(JobFailed, match="one row for each item"):
        prove(runner(lambda x: x.sum(), "x:float32[4]"))


def test_the_size_stops_where_memory_does_and_where_latency_does() -> None:
    def small(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 8:
            raise torch.OutOfMemoryError("out of memory")
        return x

    found = sized(
        runner(small, "x:float32[2]"), Proof(True, ()), most=64, latency_s=None, queue=None, wait_s=None
    )
    assert max(one.batch for one in found.tried) == 8
    limited = sized(
        runner(lambda x: x, "x:float32[2]"), Proof(True, ()), most=2, latency_s=None, queue=7, wait_s=0.5
    )
    assert max(one.batch for one in limited.tried) == 2
    assert (limited.queue, limited.wait_s) == (7, 0.5)
    assert limited.latency_limit_s >= 0.25


def test_the_queue_holds_what_the_latency_allows() -> None:
    def slow(x: torch.Tensor) -> torch.Tensor:
        torch.zeros(1).add_(1)
        import time

        time.sleep(0.02)
        return x

    found = sized(
        runner(slow, "x:float32[2]"), Proof(True, ()), most=4, latency_s=0.2, queue=None, wait_s=None
    )
    took = next(one.seconds for one in found.tried if one.batch == found.most)
    assert found.queue == max(1, int(0.2 / took) - 1) * found.most


@pytest.mark.parametrize(
    ("length", "padded"), [(1, 1), (3, 4), (8, 8), (9, 10), (17, 20), (100, 112), (512, 512), (513, 640)]
)
def test_lengths_go_to_a_few_buckets(length: int, padded: int) -> None:
    assert next_length(length) == padded


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    before = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = before[0]
    for name in set(sys.modules) - before[1]:
        if name.startswith("served_"):
            del sys.modules[name]


def test_a_factory_tells_its_inputs_by_examples(project: Path) -> None:
    (project / "served_a.py").write_text(
        textwrap.dedent("""
            import torch
            def plain(): return torch.nn.Linear(4, 2), (torch.randn(1, 4),)
            def named(): return (lambda a, b: a + b), {"a": torch.ones(1, 2), "b": torch.ones(1, 2).long()}
            def bare(): return torch.nn.Linear(4, 2)
            def function(): return lambda texts: [text.upper() for text in texts]
            def number(): return 3
            def broken(): raise RuntimeError("no weights")
        """)
    )
    plain = load("served_a:plain", (), "cpu")
    assert list(map(str, plain.specs)) == ["input:float32[4]"]
    named = load("served_a:named", (), "cpu")
    assert list(map(str, named.specs)) == ["a:float32[2]", "b:int64[2]"]
    one = Runner(named)
    assert one([example_item(one)])[0]["output"].tolist() == [2, 2]
    assert Runner(load("served_a:function", (), "cpu"))(["ab", "c"]) == [{"output": "AB"}, {"output": "C"}]
    assert load("served_a:bare", ("x:float32[4]",), "cpu").specs[0].name == "x"
    for target, words in (
        ("bare", "without example inputs"),
        ("number", "returned int"),
        ("plian", "did you mean"),
    ):
        with pytest.raises(CallerMistake, match=words):
            load(f"served_a:{target}", (), "cpu")
    with pytest.raises(JobFailed, match="no weights"):
        load("served_a:broken", (), "cpu")
    with pytest.raises(CallerMistake, match="names nothing to serve"):
        load("served_a", (), "cpu")


def test_a_torchscript_file_is_served(project: Path) -> None:
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        torch.jit.trace(nn.Linear(3, 2), torch.randn(1, 3)).save("it.pt")
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        served = load("it.pt", ("x:float32[3]",), "cpu")
    assert prove(Runner(served)).batches
    (project / "bad.pt").write_bytes(b"nothing")
    with (
        pytest.raises(CallerMistake, match="cannot be loaded"),
        pytest.warns(DeprecationWarning, match="torch.jit"),
    ):
        load("bad.pt", ("x:float32[3]",), "cpu")
    with pytest.raises(CallerMistake, match="does not say what its inputs are"):
        load("it.pt", (), "cpu")


def test_a_package_is_served_where_and_as_it_was_made(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = (InputLook(path="0.0", dtype="float32", shape=(48, 3), batch=False),)
    look = PackageLook(device="cpu", torch_version="", inputs=inputs, fewest_samples=48, most_samples=48)
    asked: list[int] = []

    def loaded(_path: str, device_index: int) -> Any:
        asked.append(device_index)
        return lambda x: x.view(48, 3) + 1

    monkeypatch.setattr("flatout.infer.exporting.loaded._look_of", lambda _path: look)
    monkeypatch.setattr("torch._inductor.aoti_load_package", loaded)
    with zipfile.ZipFile(project / "it.pt2", "w") as file:
        file.writestr("a", "b")
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "is_available", lambda: True)
        patched.setattr(torch.cuda, "device_count", lambda: 2)
        served = load("it.pt2", (), "")
        assert served.device == CPU
        with pytest.raises(CallerMistake, match="compiled for cpu, and cuda:1"):
            load("it.pt2", (), "cuda:1")
        look = dataclasses.replace(look, device="cuda:0")
        assert load("it.pt2", (), "cuda:1").device == torch.device("cuda:1")
        assert load("it.pt2", (), "").device == torch.device("cuda")
    assert asked == [-1, 1, -1]
    one = Runner(served)
    assert prove(one).notes == ("it takes batches of 48 alone: smaller ones are filled up",)


def test_answers_that_hold_no_numbers_are_the_same_where_they_are() -> None:
    def masked(x: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(torch.tensor([True, False, False]), float("-inf"))

    assert prove(runner(masked, "x:float32[3]")) == Proof(batches=True, notes=())
    mixing = runner(lambda x: masked(x) * len(x), "x:float32[3]")
    assert "items change each other's answers" in prove(mixing).notes[0]


def test_an_item_may_be_a_single_number() -> None:
    one = runner(lambda x, t: x * t[:, None], "x:float32[2]", "t:float32[]")
    items = [{"x": np.ones(2, np.float32), "t": np.array(value, np.float32)} for value in (2, 3)]
    assert [result["output"].tolist() for result in one(items)] == [[2, 2], [3, 3]]
    assert prove(one).batches


def test_outputs_may_be_arrays_of_numpy() -> None:
    one = runner(lambda x: {"twice": x.numpy() * 2}, "x:float32[2]")
    assert one([{"x": np.ones(2, np.float32)}] * 2)[1]["twice"].tolist() == [2, 2]


@pytest.mark.parametrize("made", [{"a": 1, "b": 2}, "ab", {1, 2}, 3.5])
def test_a_function_that_returns_no_list_is_told_so_and_answers_are_not_made_up(made: Any) -> None:
    with pytest.raises(TypeError, match="a list with one answer for each input"):
        runner(lambda _values: made)([1, 2])


def test_padding_in_bfloat16_is_proven_in_bfloat16() -> None:
    weight = torch.ones(1, 1, dtype=torch.bfloat16)
    one = runner(lambda x: x.sum(1, keepdim=True) @ weight, "x:bfloat16[1-16]", x=0)
    assert prove(one).notes == ()


class Rounding(nn.Module):
    """Computes in bfloat16 and answers in float32; a batch is summed in another order than one alone."""

    def __init__(self, mixes: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(8).reshape(4, 2).bfloat16())
        self.mixes = mixes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = (x.bfloat16() @ self.weight).float()
        one_rounding = 1 + 2.0**-7 if len(x) > 1 else 1.0
        return made * one_rounding + self.mixes * made.mean(0)


def test_rounding_inside_of_a_model_is_not_taken_for_items_that_mix() -> None:
    assert prove(runner(Rounding(), "x:float32[4]")) == Proof(batches=True, notes=())
    mixing = prove(runner(Rounding(mixes=0.05), "x:float32[4]"))
    assert not mixing.batches
    assert "items change each other's answers" in mixing.notes[0]


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "mps", "cuda:99"])
def test_a_device_that_is_not_here_is_told(project: Path, device: str) -> None:
    (project / "served_d.py").write_text("def make(): return lambda values: values")
    assert load("served_d:make", (), "cpu").device == CPU
    with pytest.raises(CallerMistake, match=f"--device '?{device}"):
        load("served_d:make", (), device)


def test_a_factory_that_ends_the_process_is_told_with_its_words(project: Path) -> None:
    (project / "served_e.py").write_text("import sys\ndef make(): sys.exit('no licence')")
    (project / "served_f.py").write_text("raise SystemExit('not here')")
    (project / "served_g.py").write_text("def make(): return (lambda x: x), 5")
    with pytest.raises(JobFailed, match="SystemExit: no licence"):
        load("served_e:make", (), "cpu")
    with pytest.raises(CallerMistake, match="cannot be imported: SystemExit: not here"):
        load("served_f:make", (), "cpu")
    with pytest.raises(CallerMistake, match="the example of 'x' is int"):
        load("served_g:make", (), "cpu")


def test_what_fails_while_it_is_made_ready_is_told_as_a_failed_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("no room for it")

    monkeypatch.setattr("flatout.infer.serving.items.load", fails)
    with pytest.raises(JobFailed, match="it:make could not be made ready: RuntimeError: no room for it"):
        _prepared(ServeOrder(target="it:make"), Events(None), cast("asyncio.AbstractEventLoop", None))


@pytest.mark.parametrize(
    ("pads", "words"),
    [
        ({"idz": "5"}, "did you mean|--pad ids=5"),
        ({"ids": "0.5"}, "a number that int64 holds"),
        ({"ids": "inf"}, "a number that int64 holds"),
        ({"mask": "2"}, "a number that bool holds"),
        ({"half": "1e6"}, "a number that float16 holds"),
    ],
)
def test_what_nothing_can_be_filled_up_with_is_told(pads: dict[str, str], words: str) -> None:
    specs = tuple(map(parsed, ("ids:int64[1-9]", "mask:bool[1-9]", "half:float16[1-9]")))
    good = {"ids": "-100", "mask": "0", "half": "-inf"}
    assert checked_pads(good, specs) == {"ids": -100, "mask": 0, "half": float("-inf")}
    with pytest.raises(CallerMistake, match=words):
        checked_pads(pads, specs)


@pytest.mark.parametrize(
    ("words", "is_lost"),
    [
        ("CUDA error: device-side assert triggered", True),
        ("CUDA error: an illegal memory access was encountered", True),
        ("CUDA out of memory. Tried to allocate 2 GiB", False),
        ("mat1 and mat2 shapes cannot be multiplied", False),
    ],
)
def test_a_lost_device_is_told_from_a_failed_item(words: str, is_lost: bool) -> None:
    assert bool(lost_device(RuntimeError(words))) is is_lost
