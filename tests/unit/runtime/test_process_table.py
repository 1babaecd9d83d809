"""The table of processes tells what it must of real ones."""

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flatout.records.errors import EnvironmentProblem
from flatout.runtime import process_table
from flatout.runtime.process_table import TableReader, read_table, was_handed_over
from tests.detached import Detached
from tests.fakes.processes import sleeping

FORKS = """
import time
if os.fork() == 0:
    note("copy"); time.sleep(600)
note("main"); time.sleep(600)
"""


def test_our_own_process_and_its_parents_are_seen() -> None:
    table = read_table()
    own = table.by_pid[os.getpid()]
    assert (own.is_python, own.parent, own.zombie, own.of_the_kernel) == (True, os.getppid(), False, False)
    assert own.user
    assert own.age_s > 0
    assert table.ancestors_of(os.getpid())[0].pid == os.getppid()
    assert os.getpid() in {one.pid for one in table.descendants_of(os.getppid())}


def test_a_program_is_told_from_a_copy_and_who_was_handed_over_from_who_was_not(tmp_path: Path) -> None:
    job = Detached.python(tmp_path / "a", FORKS, RANK="3", SECRET_TOKEN="x")
    try:
        main, copy = job.noted("main"), job.noted("copy")
        table = read_table()
        assert [table.by_pid[pid].forked for pid in (main, copy)] == [False, True]
        assert table.by_pid[copy].variables == {"RANK": "3"}, "others may be secret, and are not kept"
        assert table.by_pid[main].holds_torch is False
        assert not was_handed_over(table.by_pid[copy], table)
        os.kill(main, 9)
        again = read_table()
        while again.by_pid[copy].parent == main:
            again = read_table()
        assert was_handed_over(again.by_pid[copy], again)
    finally:
        job.end()


def test_torch_is_seen_in_the_memory_of_a_process() -> None:
    code = "import torch; print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert read_table().by_pid[child.pid].holds_torch is True
        child.communicate(b"\n")


def test_a_machine_whose_processes_are_hidden_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_table.psutil, "process_iter", lambda: iter(()))
    with pytest.raises(EnvironmentProblem) as caught:
        read_table()
    assert caught.value.exit_code == 3


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
@pytest.mark.parametrize("proc", ["empty", "nowhere"])
def test_a_machine_without_proc_is_an_error_that_says_so_at_any_look(
    proc: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = TableReader()
    reader()
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(process_table.psutil, "PROCFS_PATH", str(tmp_path / proc))
    for look in (read_table, reader):
        with pytest.raises(EnvironmentProblem, match="cannot be seen") as caught:
            look()
        assert "mount -t proc" in caught.value.remedy


def test_a_second_look_tells_the_same_and_what_has_changed() -> None:
    reader = TableReader()
    before = reader().by_pid[os.getpid()]
    until_s = time.process_time() + 0.1  # the kernel tells it in hundredths
    while time.process_time() < until_s:
        pass
    with sleeping() as child:
        table = reader()
        child.kill()
        child.wait()
    again, whole = table.by_pid[os.getpid()], read_table().by_pid[os.getpid()]
    assert again.cpu_s is not None
    assert before.cpu_s is not None
    assert again.cpu_s > before.cpu_s
    same = ("pid", "start", "parent", "group", "session", "name", "words", "user", "is_python", "forked")
    assert [getattr(again, name) for name in same] == [getattr(whole, name) for name in same]
    assert table.by_pid[child.pid].words == ("sleep", "600")
    assert child.pid not in reader().by_pid


def test_a_process_that_became_another_program_is_read_anew() -> None:
    reader = TableReader()
    code = "import os; input(); os.execv('/bin/sleep', ['sleep', '600'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1) as child:
        while "-c" not in reader().by_pid[child.pid].words:
            pass
        child.stdin.write(b"\n")  # type: ignore[union-attr]
        child.stdin.flush()  # type: ignore[union-attr]
        while (words := reader().by_pid[child.pid].words) != ("sleep", "600"):
            assert "-c" in words  # what it was until then
        child.kill()


def test_only_python_is_looked_at_as_a_whole_again(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = TableReader()
    with sleeping() as child:
        reader()
        looked: list[int] = []
        whole = process_table._seen
        monkeypatch.setattr(process_table, "_seen", lambda one: (looked.append(one.pid), whole(one))[1])
        for _ in range(TableReader.ANEW_EVERY):
            reader()
        child.kill()
    assert child.pid not in looked
    assert os.getpid() in looked


def test_one_that_was_seen_before_it_had_its_words_is_looked_at_again() -> None:
    reader = TableReader()
    with sleeping() as child:
        table = reader()
        # As the kernel shows it for a moment, while it becomes a program.
        table.by_pid[child.pid] = dataclasses.replace(table.by_pid[child.pid], words=(), variables={})
        assert reader().by_pid[child.pid].words == ("sleep", "600")
        child.kill()
