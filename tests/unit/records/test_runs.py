"""The run folder: written whole, read anywhere, and never spoilt by an older Flatout."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flatout import __version__
from flatout.records import runs
from flatout.records.device import Device
from flatout.records.errors import (
    CallerMistake,
    CannotWrite,
    CorruptFile,
    ForeignVersion,
    LockHeld,
    UnknownName,
)
from flatout.records.lock import is_locked
from flatout.records.runs import MANIFEST, RunFolder, find_run, runs_under

DEVICE = Device(index=0, vendor="cpu", name="a processor")

KILLED_IN_MID_RUN = """
import os, signal, sys
from pathlib import Path
from flatout.records.runs import RunFolder
run = RunFolder.create(Path(sys.argv[1]), command="doctor", arguments=())
with run.writing():
    run.write("device", 1, {"index": 0})
    os.kill(os.getpid(), signal.SIGKILL)
"""


def make(root: Path, command: str = "doctor", *arguments: str) -> RunFolder:
    return RunFolder.create(root, command=command, arguments=arguments)


def on_disk(run: RunFolder) -> dict[str, Any]:
    return json.loads((run.path / MANIFEST).read_bytes())


def edit(run: RunFolder, **changes: object) -> bytes:
    """Write the manifest as some other Flatout would; returns the bytes."""
    data = json.dumps({**on_disk(run), **changes}).encode()
    (run.path / MANIFEST).write_bytes(data)
    return data


def replace(path: Path, content: bytes | None) -> None:
    """Damage a file, or take it away."""
    path.unlink()
    if content is not None:
        path.write_bytes(content)


def place(root: Path, name: str) -> RunFolder:
    """A run folder under a name of our choice."""
    run = make(root)
    run.path.rename(run.path.with_name(name))
    return RunFolder.open(run.path.with_name(name))


def test_what_was_written_reads_back(tmp_path: Path) -> None:
    run = make(tmp_path, "doctor", "--save")
    with run.writing():
        path = run.write("device", 1, DEVICE)
    assert path == run.path / "device.json"
    again = RunFolder.open(run.path)
    assert again.manifest == run.manifest
    assert again.manifest.command == "doctor"
    assert again.manifest.arguments == ("--save",)
    assert again.manifest.documents == ("device",)
    assert again.manifest.flatout_version == __version__
    assert again.manifest.created_at.tzinfo is not None
    assert again.read("device", 1, Device) == DEVICE
    assert again.plain_documents()["device"]["name"] == "a processor"


def test_the_folder_lies_under_runs_and_its_name_is_its_id(tmp_path: Path) -> None:
    run = make(tmp_path / ".flatout")
    assert run.path == tmp_path / ".flatout" / "runs" / run.manifest.id
    assert not list(run.path.parent.glob(".*"))


def test_many_runs_in_one_second_never_collide(tmp_path: Path) -> None:
    assert len({make(tmp_path).path for _ in range(20)}) == 20


def test_the_status_goes_from_running_to_done(tmp_path: Path) -> None:
    run = make(tmp_path)
    assert on_disk(run)["status"] == "running"
    with run.writing() as same:
        assert same is run
        assert is_locked(run.path)
        assert on_disk(run)["status"] == "running"
    assert on_disk(run)["status"] == run.manifest.status == "done"
    assert not is_locked(run.path)


def test_the_status_is_failed_when_what_ran_went_wrong(tmp_path: Path) -> None:
    run = make(tmp_path)
    with run.writing():
        run.went_wrong()
        assert on_disk(run)["status"] == "running"
    assert on_disk(run)["status"] == run.manifest.status == "failed"


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_the_status_is_failed_when_an_exception_passes(tmp_path: Path, error: type[BaseException]) -> None:
    run = make(tmp_path)

    def fail() -> None:
        with run.writing():
            run.write("device", 1, DEVICE)
            raise error

    with pytest.raises(error):
        fail()
    assert on_disk(run)["status"] == "failed"
    assert RunFolder.open(run.path).read("device", 1, Device) == DEVICE
    assert not is_locked(run.path)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (CallerMistake("no\n\x1b[31mscript", expected="one", remedy="name it"), "no\n\\x1b[31mscript"),
        (KeyboardInterrupt(), "stopped by Ctrl-C"),
        (ValueError("of ours"), "ValueError: of ours"),
    ],
)
def test_what_ended_a_run_is_kept_for_its_reader(tmp_path: Path, error: BaseException, said: str) -> None:
    folder = RunFolder.create(tmp_path, command="tune", arguments=())
    with pytest.raises(type(error)), folder.writing():
        raise error
    assert RunFolder.open(folder.path).manifest.problem == said


def test_a_killed_run_stays_running_but_unlocked_and_readable(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED_IN_MID_RUN, str(tmp_path)], timeout=60)
    assert done.returncode == -9
    run = find_run(tmp_path, "latest")
    assert run.manifest.status == "running"
    assert not is_locked(run.path)
    assert run.plain_documents() == {"device": {"schema": "flatout.device/1", "index": 0}}


def test_the_first_error_is_heard_when_the_folder_has_vanished_too(tmp_path: Path) -> None:
    run = make(tmp_path)

    def fail() -> None:
        with run.writing():
            (run.path / MANIFEST).unlink()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as heard:
        fail()
    assert "could not be marked as failed" in heard.value.__notes__[0]


@pytest.mark.parametrize("damage", [None, b"", b"{", b"\xff"], ids=repr)
def test_a_manifest_damaged_in_mid_run_is_a_clean_error(tmp_path: Path, damage: bytes | None) -> None:
    run = make(tmp_path)
    with pytest.raises(CorruptFile), run.writing():
        replace(run.path / MANIFEST, damage)
    if damage is not None:
        assert (run.path / MANIFEST).read_bytes() == damage


def test_two_writers_of_one_folder_are_refused(tmp_path: Path) -> None:
    run = make(tmp_path)
    with run.writing(), pytest.raises(LockHeld), RunFolder.open(run.path).writing():
        pytest.fail("two writers")
    assert on_disk(run)["status"] == "done"


def test_a_document_written_twice_is_listed_once(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.write("device", 1, DEVICE)
    run.write("device", 1, dataclasses.replace(DEVICE, name="another"))
    assert on_disk(run)["documents"] == ["device"]
    assert run.read("device", 1, Device).name == "another"


def test_a_folder_of_a_newer_version_is_refused_and_not_rewritten(tmp_path: Path) -> None:
    run = make(tmp_path)
    data = edit(run, schema="flatout.run-folder/2", status=["a", "new", "shape"])
    with pytest.raises(ForeignVersion, match="run-folder/2"):
        RunFolder.open(run.path)
    with pytest.raises(ForeignVersion):
        find_run(tmp_path, run.manifest.id)
    assert (run.path / MANIFEST).read_bytes() == data


def test_a_folder_that_turned_newer_in_mid_run_is_not_rewritten(tmp_path: Path) -> None:
    run = make(tmp_path)
    with pytest.raises(ForeignVersion), run.writing():
        data = edit(run, schema="flatout.run-folder/2")
    assert (run.path / MANIFEST).read_bytes() == data
    with pytest.raises(ForeignVersion):
        run.write("device", 1, DEVICE)
    assert (run.path / MANIFEST).read_bytes() == data


def test_a_document_of_a_newer_version_is_refused_and_not_rewritten(tmp_path: Path) -> None:
    run = make(tmp_path)
    path = run.write("device", 2, DEVICE)
    data = path.read_bytes()
    with pytest.raises(ForeignVersion, match="device/2"):
        run.read("device", 1, Device)
    assert path.read_bytes() == data


def test_fields_that_a_newer_flatout_wrote_survive_our_updates(tmp_path: Path) -> None:
    run = make(tmp_path)
    added = {
        "energy_mj": 12,
        "nulls": {"price": "not a number"},
        "price": None,
        "deep": {"a": [1, None, "ü"]},
    }
    edit(run, **added)
    again = RunFolder.open(run.path)
    with again.writing():
        again.write("device", 1, DEVICE)
    found = on_disk(run)
    assert {name: found[name] for name in added} == added
    assert found["status"] == "done"
    assert found["documents"] == ["device"]
    assert found["schema"] == "flatout.run-folder/1"
    assert next(iter(found)) == "schema"


def test_a_document_with_fields_that_we_do_not_know_reads(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.write("device", 1, {**dataclasses.asdict(DEVICE), "colour": "green"})
    assert run.read("device", 1, Device) == DEVICE
    assert run.plain_documents()["device"]["colour"] == "green"


@pytest.mark.parametrize(
    "name",
    ["", "..", ".", "a/b", "../run", "/etc/passwd", "a\\b", "A", "1a", "a.json", "a\n", "a" * 65, "run"],
)
def test_a_name_that_could_leave_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    run = make(tmp_path)
    before = (run.path / MANIFEST).read_bytes()
    with pytest.raises(ValueError, match="no name for a document"):
        run.write(name, 1, DEVICE)
    with pytest.raises(ValueError, match="no name for a document"):
        run.read(name, 1, Device)
    assert (run.path / MANIFEST).read_bytes() == before
    assert [path.name for path in run.path.iterdir()] == [MANIFEST]


@pytest.mark.parametrize("name", ["../../secret", "/etc/hostname", "run"])
def test_a_manifest_that_lists_files_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    run = make(tmp_path)
    (tmp_path / "secret.json").write_text("{}")
    edit(run, documents=[name])
    with pytest.raises(CorruptFile, match="impossible name"):
        RunFolder.open(run.path)


def test_a_document_that_nobody_wrote_is_an_unknown_name(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.write("device", 1, DEVICE)
    with pytest.raises(UnknownName, match="did you mean 'device'"):
        run.read("devise", 1, Device)


@pytest.mark.parametrize("damage", [None, b"", b'{"schema": "flatout.device/1", ', b"\xff"], ids=repr)
def test_a_listed_document_that_is_gone_or_damaged_is_a_clean_error(
    tmp_path: Path, damage: bytes | None
) -> None:
    run = make(tmp_path)
    path = run.write("device", 1, DEVICE)
    replace(path, damage)
    with pytest.raises(CorruptFile):
        run.read("device", 1, Device)
    with pytest.raises(CorruptFile):
        run.plain_documents()


@pytest.mark.parametrize("content", [None, b"", b"[]x", b"\x00" * 512], ids=repr)
def test_a_folder_without_a_readable_manifest_is_a_clean_error(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(CorruptFile):
        RunFolder.open(tmp_path)


def test_a_run_cannot_be_made_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotWrite):
        make(tmp_path / "file")


def test_the_manifest_holds_nothing_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLATOUT_TEST_TOKEN", "hunter2-is-secret")
    run = make(tmp_path)
    with run.writing():
        run.write("device", 1, DEVICE)
    written = b"".join(path.read_bytes() for path in run.path.iterdir())
    assert b"hunter2" not in written
    assert b"FLATOUT_TEST_TOKEN" not in written
    assert not set(on_disk(run)) & {"environment", "env", "environ"}


def test_an_argument_that_is_not_unicode_is_kept_as_escapes(tmp_path: Path) -> None:
    run = make(tmp_path, "doctor", os.fsdecode(b"caf\xe9"))
    assert RunFolder.open(run.path).manifest.arguments == (r"caf\udce9",)


class TestFindRun:
    def test_by_id_and_by_the_beginning_of_one(self, tmp_path: Path) -> None:
        place(tmp_path, "20261114-000000-doctor-aaaaaa")
        place(tmp_path, "20261115-000000-limits-bbbbbb")
        for wanted in ("20261114-000000-doctor-aaaaaa", "20261114", "20261114-0"):
            assert find_run(tmp_path, wanted).path.name == "20261114-000000-doctor-aaaaaa"

    def test_a_folder_of_another_version_beside_it_does_not_matter(self, tmp_path: Path) -> None:
        place(tmp_path, "20261114-000000-doctor-aaaaaa")
        edit(place(tmp_path, "20261115-000000-limits-bbbbbb"), schema="flatout.run-folder/9")
        assert find_run(tmp_path, "20261114").path.name == "20261114-000000-doctor-aaaaaa"

    def test_latest_is_the_newest(self, tmp_path: Path) -> None:
        for name in ("20261115-000000-a-1", "20261116-000000-a-1", "20261114-000000-z-1"):
            place(tmp_path, name)
        assert find_run(tmp_path, "latest").path.name == "20261116-000000-a-1"

    def test_latest_tells_runs_of_the_same_second_apart(self, tmp_path: Path) -> None:
        first = place(tmp_path, "20261115-000000-z-1")
        last = place(tmp_path, "20261115-000000-a-1")
        assert first.manifest.created_at < last.manifest.created_at
        assert find_run(tmp_path, "latest").path == last.path

    def test_latest_of_a_command_is_the_newest_of_that_one(self, tmp_path: Path) -> None:
        for name in ("20261115-000000-profile-1", "20261116-000000-run-profile", "20261114-000000-profile-2"):
            place(tmp_path, name)
        assert find_run(tmp_path, "latest", of="profile").path.name == "20261115-000000-profile-1"
        with pytest.raises(UnknownName) as refused:
            find_run(tmp_path, "latest", of="tune")
        assert "flatout tune" in refused.value.remedy

    def test_by_the_path_of_its_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run = make(tmp_path / "elsewhere")
        assert find_run(tmp_path / "nothing-here", str(run.path)).manifest == run.manifest
        monkeypatch.chdir(run.path.parent)
        assert find_run(tmp_path / "nothing-here", f"./{run.path.name}").manifest == run.manifest

    def test_an_ambiguous_beginning_lists_only_the_runs_that_fit(self, tmp_path: Path) -> None:
        for name in ("20261115-000000-a-1", "20261115-000000-b-2", "20261116-000000-c-3"):
            place(tmp_path, name)
        with pytest.raises(CallerMistake, match="2 runs begin with") as refused:
            find_run(tmp_path, "20261115")
        assert "20261115-000000-b-2, 20261115-000000-a-1" in refused.value.expected
        assert "-c-3" not in refused.value.expected

    @pytest.mark.parametrize("wanted", ["nope", "x" * 300, "/root/../nowhere", "a/b/c", "x" * 5000, "\x00"])
    def test_an_unknown_run_lists_what_there_is(self, tmp_path: Path, wanted: str) -> None:
        run = make(tmp_path)
        make(tmp_path)
        with pytest.raises(UnknownName) as refused:
            find_run(tmp_path, wanted)
        assert run.manifest.id in refused.value.expected

    @pytest.mark.parametrize("wanted", ["latest", "20261115"])
    def test_without_any_runs_it_says_so_and_makes_nothing(self, tmp_path: Path, wanted: str) -> None:
        with pytest.raises(UnknownName, match="none to choose from"):
            find_run(tmp_path / ".flatout", wanted)
        assert list(tmp_path.iterdir()) == []


def test_runs_are_listed_newest_first_and_strangers_are_left_out(tmp_path: Path) -> None:
    names = ["20261114-000000-a-1", "20261115-000000-a-1"]
    for name in names:
        place(tmp_path, name)
    (tmp_path / "runs" / "empty").mkdir()
    (tmp_path / "runs" / "file").write_text("")
    assert [path.name for path in runs_under(tmp_path)] == names[::-1]
    assert list(runs_under(tmp_path / "missing")) == []


def test_the_docstring_shows_the_name_of_the_manifest() -> None:
    assert MANIFEST in (runs.__doc__ or "")
