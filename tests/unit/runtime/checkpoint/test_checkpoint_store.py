"""A checkpoint is there whole or not at all, and older ones stay until it is."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flatout.runtime.checkpoint.store import (
    MANIFEST,
    Damaged,
    Partial,
    Stored,
    checkpoints,
    drop_replaced,
    newest_complete,
    prune,
    read_manifest,
    replaced,
    set_aside_newer,
    verify,
)


def made(folder: Path, step: int, text: bytes = b"weights") -> Stored:
    partial = Partial(folder, step, "mine")
    partial.add("model.safetensors", lambda: iter((text, b"!")))
    return partial.commit({"parts": ["model"]})


def test_what_is_committed_is_found_and_whole(tmp_path: Path) -> None:
    made(tmp_path, 5)
    made(tmp_path, 1200)
    assert [one.step for one in checkpoints(tmp_path)] == [1200, 5]
    manifest = verify(tmp_path / "step-000001200")
    assert manifest["files"]["model.safetensors"]["bytes"] == 8
    assert manifest["parts"] == ["model"]


def content(stored: Stored) -> bytes:
    return (stored.path / "model.safetensors").read_bytes()


def test_a_step_that_comes_again_replaces_what_was_there_once_that_is_proven(tmp_path: Path) -> None:
    made(tmp_path, 5, b"first")
    again = made(tmp_path, 5, b"second")
    assert content(again) == b"second!"
    before = replaced(again)
    assert before is not None
    assert content(before) == b"first!"
    assert [one.path for one in checkpoints(tmp_path)] == [again.path, before.path]
    drop_replaced(tmp_path, again)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000005"]


def test_what_was_replaced_is_found_where_its_successor_is_damaged(tmp_path: Path) -> None:
    made(tmp_path, 5, b"first")
    flipped(made(tmp_path, 5, b"second").path)
    found = newest_complete(tmp_path, lambda *_: None)
    assert found is not None
    assert content(found) == b"first!"
    third = made(tmp_path, 5, b"third")
    before = replaced(third)
    assert before is not None
    assert content(before) == b"first!"


def test_what_was_replaced_is_swept_up(tmp_path: Path) -> None:
    made(tmp_path, 4)
    made(tmp_path, 5, b"first")
    last = made(tmp_path, 5, b"second")
    prune(tmp_path, 2, token="mine", protect=last)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000004", "step-000000005"]


def test_what_is_set_aside_takes_nobodys_place(tmp_path: Path) -> None:
    for text in (b"first", b"second"):
        made(tmp_path, 5, text)
        set_aside_newer(tmp_path, 0)
    names = ["abandoned-step-000000005", "abandoned-step-000000005.2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert [(tmp_path / name / "model.safetensors").read_bytes() for name in names] == [b"first!", b"second!"]


def truncated(path: Path) -> None:
    with (path / "model.safetensors").open("r+b") as file:
        file.truncate(3)


def flipped(path: Path) -> None:
    (path / "model.safetensors").write_bytes(b"weightz!")


def without_a_file(path: Path) -> None:
    (path / "model.safetensors").unlink()


def without_a_manifest(path: Path) -> None:
    (path / MANIFEST).unlink()


def with_nonsense(path: Path) -> None:
    (path / MANIFEST).write_text("[" * 100_000)


def with_a_path_outside(path: Path) -> None:
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["files"]["../../secret"] = manifest["files"]["model.safetensors"]
    (path / MANIFEST).write_text(json.dumps(manifest))


def of_another_version(path: Path) -> None:
    manifest = json.loads((path / MANIFEST).read_text())
    (path / MANIFEST).write_text(json.dumps({**manifest, "version": 99}))


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (truncated, "3 bytes"),
        (flipped, "not what was written"),
        (without_a_file, "missing"),
        (without_a_manifest, "no manifest"),
        (with_nonsense, "cannot be read"),
        (with_a_path_outside, "none of ours"),
        (of_another_version, "version 99"),
    ],
)
def test_a_damaged_one_is_passed_over_with_a_word(tmp_path: Path, damage: object, word: str) -> None:
    made(tmp_path, 5)
    damage(made(tmp_path, 10).path)  # type: ignore[operator]
    told: list[tuple[int, str]] = []
    found = newest_complete(tmp_path, lambda one, problem: told.append((one.step, problem)))
    assert found is not None
    assert found.step == 5
    [(step, problem)] = told
    assert step == 10
    assert word in problem
    with pytest.raises(Damaged):
        verify(tmp_path / "step-000000010")


def test_pruning_keeps_the_newest_and_sweeps_up_after_the_dead(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        last = made(tmp_path, step)
    left = tmp_path / ".partial-step-000000004-another"
    left.mkdir()
    living = Partial(tmp_path, 5, "mine")
    gone = prune(tmp_path, 2, token="mine", protect=last)
    assert [one.step for one in gone] == [1]
    assert [one.step for one in checkpoints(tmp_path)] == [3, 2]
    assert not left.exists()
    assert living.path.exists()


def test_a_damaged_one_is_none_of_those_that_are_kept(tmp_path: Path) -> None:
    for step in (1, 5, 8):
        last = made(tmp_path, step)
    truncated(made(tmp_path, 10).path)
    assert [one.step for one in prune(tmp_path, 2, token="mine", protect=last)] == [1]
    assert [one.step for one in checkpoints(tmp_path)] == [10, 8, 5]


KILLED_AT = """
import os, signal, sys
from pathlib import Path
from flatout.runtime.checkpoint import store

folder, calls = Path(sys.argv[1]), int(sys.argv[2])
made = 0
def dying(real):
    def call(*args, **kwargs):
        global made
        made += 1
        if made == calls:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)
    return call
os.fsync = dying(os.fsync)
store._write_all = dying(store._write_all)
Path.rename = dying(Path.rename)
Path.mkdir = dying(Path.mkdir)
partial = store.Partial(folder, int(sys.argv[3]), 'other')
partial.add("model.safetensors", lambda: iter((b"new", b"er")))
partial.add("state.json", lambda: iter((b"{}",)))
stored = partial.commit({})
store.drop_replaced(folder, stored)
"""


def test_killed_at_every_boundary_the_one_before_loads(tmp_path: Path) -> None:
    made(tmp_path, 5)
    calls, codes = 0, []
    while not codes or codes[-1] == -signal.SIGKILL:
        calls += 1
        folder = tmp_path / str(calls)
        made(folder, 5)
        codes.append(killed_at(folder, calls, 10))
        found = newest_complete(folder, lambda *_: pytest.fail("what has a name is whole"))
        assert found is not None
        named = codes[-1] == 0 or (folder / "step-000000010").exists()
        assert found.step == (10 if named else 5)
    assert codes[-1] == 0
    assert len(codes) > 8


def test_killed_at_every_boundary_one_of_the_step_that_comes_again_loads(tmp_path: Path) -> None:
    calls, codes, contents = 0, [], []
    while not codes or codes[-1] == -signal.SIGKILL:
        calls += 1
        folder = tmp_path / str(calls)
        made(folder, 5)
        codes.append(killed_at(folder, calls, 5))
        found = newest_complete(folder, lambda *_: pytest.fail("what has a name is whole"))
        assert found is not None
        assert found.step == 5
        contents.append(content(found))
        # The next one finds its way, whatever was left.
        last = made(folder, 5, b"last")
        drop_replaced(folder, last)
        assert [one.path for one in checkpoints(folder)] == [last.path]
        assert content(last) == b"last!"
    assert codes[-1] == 0
    assert set(contents) == {b"weights!", b"newer"}
    assert contents == sorted(contents, reverse=True)


def killed_at(folder: Path, calls: int, step: int) -> int:
    words = [sys.executable, "-c", KILLED_AT, str(folder), str(calls), str(step)]
    return subprocess.run(words, check=False).returncode


def test_a_full_disk_leaves_the_old_one_and_no_rest(tmp_path: Path) -> None:
    made(tmp_path, 5)
    partial = Partial(tmp_path, 10, "mine")

    def too_much() -> object:
        yield b"some"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        partial.add("model.safetensors", too_much)  # type: ignore[arg-type]
    partial.give_up()
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000005"]
    assert read_manifest(tmp_path / "step-000000005")["step"] == 5
    assert os.listdir(tmp_path) == ["step-000000005"]  # noqa: PTH208


def test_the_first_rank_commits_what_all_have_written(tmp_path: Path) -> None:
    first, second = (Partial(tmp_path, 7, "mine") for _ in range(2))
    first.add("model.safetensors", lambda: iter((b"first",)))
    with pytest.raises(TimeoutError, match="rank 1"):
        first.gather(2, wait_s=0.05)
    second.add("rank-1.model.safetensors", lambda: iter((b"second",)))
    second.finish_rank(1)
    first.gather(2, wait_s=5.0)
    stored = first.commit({})
    assert set(verify(stored.path)["files"]) == {"model.safetensors", "rank-1.model.safetensors"}
